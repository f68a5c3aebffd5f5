"""`softhca show wr`: rows of what an HCA told, the requests of one in this process, wrong usage."""

import errno
import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.nt_status import STATUS_BUFFER_TOO_SMALL, STATUS_INVALID_PARAMETER
from shared.verb_codes import (
    HCA_CONTROL_DEVICE,
    INSPECT_OUTPUT_LENGTH,
    INSPECT_QUEUE_PAIR,
    IOCTL_INSPECT_QUEUE_PAIR,
    VERB_RESULT,
)
from user_proc.cli.columns import lines_of
from user_proc.cli.show_command import show
from user_proc.cli.work_requests import COLUMNS, request_rows
from user_proc.errors import InvalidInstanceName, KernelNotRunning, NtStatusError
from user_proc.process import UserProcess
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, SendWR

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
REQUEST = st.fixed_dictionaries(
    {"position": U64, "progress": st.just("completed")},
    optional={
        "status": st.integers(0, 255),
        "when_ns": U64,
        "byte_len": U32,
        "elements": st.lists(st.tuples(U64, U32, U32), max_size=3),
        "elements_claimed": U32,
    },
)
SENT = st.fixed_dictionaries(
    {"position": U64, "progress": st.just("posted"), "opcode": U32, "flags": U32, "imm_data": U32},
    optional={"remote_address": U64, "rkey": U32, "inline_length": U32, "dlid": U32},
)


class Inside:
    """A kernel in this process, a queue pair connected to itself, and the control device."""

    def __init__(self) -> None:
        self.machine = Machine(KernelSettings(verifier=True, seed=5), in_process=True)
        self.machine.start_hca()
        self.process = UserProcess.in_process(self.machine.connect_in_process("inside"))
        self.context = Context(name="mthca0", process=self.process)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 20)
        self.mr = MR(self.pd, 8192, 7)
        cap = QPCap(max_send_wr=16, max_recv_wr=4, max_send_sge=2, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=2, scq=self.cq, rcq=self.cq, cap=cap))
        self.control = self.process.open_device(HCA_CONTROL_DEVICE)

    def connect(self) -> None:
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = 7
        attr.path_mtu, attr.dest_qp_num = 3, self.qp.qp_num
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 1, 8, 3, 7
        attr.ah_attr = AHAttr(dlid=1, port_num=1)
        self.qp.to_rts(attr)

    def ask(self, number: int) -> tuple[int, Any]:
        output = bytearray(INSPECT_OUTPUT_LENGTH)
        question = INSPECT_QUEUE_PAIR.pack(number)
        length = self.control.device_io_control(IOCTL_INSPECT_QUEUE_PAIR, question, output)
        text = bytes(output[VERB_RESULT.size : length])
        return VERB_RESULT.unpack_from(output)[0], json.loads(text) if text else None

    def close(self) -> None:
        self.control.close()
        self.context.close()
        self.process.close()
        self.machine.close()


@pytest.fixture(scope="module")
def inside() -> Iterator[Inside]:
    inside = Inside()
    yield inside
    inside.close()


def test_a_queue_pair_tells_its_requests_once_it_is_the_hcas(inside: Inside):
    assert inside.ask(inside.qp.qp_num) == (errno.EINVAL, None)  # in Reset it is the driver's
    inside.connect()
    number, told = inside.ask(inside.qp.qp_num)
    assert (number, request_rows(told)) == (0, [])
    element = SGE(inside.mr.buf, 64, inside.mr.lkey)
    wr = SendWR(7, 0, 1, 0, [element], 2)
    wr.set_wr_rdma(inside.mr.rkey, inside.mr.buf + 4096)
    inside.qp.post_send(wr)
    while not inside.cq.poll(1)[0]:
        pass
    (row,) = request_rows(inside.ask(inside.qp.qp_num)[1])
    assert (row["opcode"], row["status"], row["flags"]) == ("rdma_write", "success", ["signaled"])
    assert row["elements"] == [{"address": inside.mr.buf, "length": 64, "lkey": inside.mr.lkey}]
    assert (row["remote_address"], row["rkey"]) == (inside.mr.buf + 4096, inside.mr.rkey)


@pytest.mark.parametrize("number", [0, 1, 0xFFFFFF, 0xFFFFFFFF])
def test_a_number_of_nobody_is_refused(inside: Inside, number: int):
    assert inside.ask(number) == (errno.EINVAL, None)


@pytest.mark.parametrize("question", [b"", b"abc", b"abcde", bytes(64)])
def test_a_question_of_another_length_is_refused(inside: Inside, question: bytes):
    with pytest.raises(NtStatusError) as refused:
        inside.control.device_io_control(
            IOCTL_INSPECT_QUEUE_PAIR, question or None, bytearray(INSPECT_OUTPUT_LENGTH)
        )
    assert refused.value.status == STATUS_INVALID_PARAMETER


@pytest.mark.parametrize("room", [0, VERB_RESULT.size - 1])
def test_an_answer_without_room_is_refused(inside: Inside, room: int):
    with pytest.raises(NtStatusError) as refused:
        inside.control.device_io_control(
            IOCTL_INSPECT_QUEUE_PAIR, INSPECT_QUEUE_PAIR.pack(1), bytearray(room) or None
        )
    assert refused.value.status == STATUS_BUFFER_TOO_SMALL


@given(send=st.lists(SENT, max_size=4), receive=st.lists(REQUEST, max_size=4), now=U64)
def test_whatever_the_rings_held_makes_rows_and_lines(send: Any, receive: Any, now: int):
    told = {
        "queue_pair": {"number": 7, "now_ns": now},
        "send": {str(number): one for number, one in enumerate(send)},
        "receive": {str(number): one for number, one in enumerate(receive)},
    }
    rows = request_rows(json.loads(json.dumps(told)))
    assert len(rows) == len(send) + len(receive)
    assert all(row["ago_ns"] is None or row["ago_ns"] >= 0 for row in rows)
    lines = list(lines_of(COLUMNS, rows))
    assert len(lines) == 1 + len(rows)
    assert all(line.isprintable() for line in lines)
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.parametrize(
    ("kind", "number", "words"),
    [
        ("wr", None, "needs --qp NUMBER"),
        ("wr", "seven", "'seven' is no number"),
        ("wr", "0", "is no number"),
        ("wr", "-5", "is no number"),
        ("wr", "0x1000000", "is no number"),
        ("wr", "9" * 5000, "is no number"),
        ("wr", "7\x1b[31m", "is no number"),
        ("qp", "7", "goes with wr only"),
    ],
)
def test_wrong_usage_is_one_sentence(
    capsys: pytest.CaptureFixture[str], kind: str, number: str | None, words: str
):
    with pytest.raises(typer.Exit) as left:
        show(kind, queue_pair=number, as_json=True)
    said = capsys.readouterr()
    assert left.value.exit_code == 2
    assert words in said.err
    assert said.err.count("\n") == 1
    assert "\x1b" not in said.err
    assert words in json.loads(said.out)["error"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("../../etc", InvalidInstanceName),
        ("a\x1b[31mb", InvalidInstanceName),
        ("x" * 300, InvalidInstanceName),
        ("never-started", KernelNotRunning),
    ],
)
def test_a_name_no_kernel_has_is_one_sentence(
    capsys: pytest.CaptureFixture[str], name: str, error: type[Exception]
):
    with pytest.raises(error) as raised:
        show("wr", name=name, queue_pair="7", as_json=True)
    assert str(raised.value).isprintable()
    assert json.loads(capsys.readouterr().out)["error"] == str(raised.value)
