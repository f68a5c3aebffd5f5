"""A user that is stopped with all it can hold delays nobody: another's requests are measured."""

import os
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.ioctl_codes import COMPLETION_DEVICE, METHOD_BUFFERED, NOOP_DEVICE, noop_code
from tests.end_to_end.conftest import READY_USER, state_of, wait_until
from tests.end_to_end.stopped_user import ENDING, ENTRIES, LOCKED_BYTES, REQUESTS
from tests.ready_python import Program
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, SendWR

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 4
TIMES = 25  # of each kind in a round
LONGEST_S = 1.0
SLOWER = 3.0
BESIDE_S = 0.0005  # what other programs of the machine may add to a median


class Witness:
    """A user that does one thing of each kind, and how long each took."""

    def __init__(self, kernel: str) -> None:
        self.process = UserProcess.connect(kernel)
        self.device = self.process.open_device(NOOP_DEVICE)
        self.context = Context(name="mthca0", process=self.process)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 4)
        rights = int(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        self.region = MR(self.pd, 8192, rights)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(4, 4)))
        attr = QPAttr()
        attr.dest_qp_num, attr.ah_attr = self.qp.qp_num, AHAttr(dlid=1)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        attr.qp_access_flags = rights
        self.qp.to_rts(attr)
        self.kinds: dict[str, Callable[[], None]] = {
            "request": self.request, "verb": self.verb, "write": self.write,
        }  # fmt: skip

    def request(self) -> None:
        code = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)
        assert self.device.device_io_control(code, bytes(64), bytearray(64)) == 64

    def verb(self) -> None:
        MR(self.pd, 4096, 1).close()

    def write(self) -> None:
        element = SGE(self.region.buf, 64, self.region.lkey)
        write = SendWR(1, e.IBV_WR_RDMA_WRITE, 1, sg=[element])
        write.set_wr_rdma(self.region.rkey, self.region.buf + 4096)
        self.qp.post_send(write)
        count = 0
        while not count:
            count, completions = self.cq.poll(1)
        assert completions[0].status == e.IBV_WC_SUCCESS

    def measure(self, into: dict[str, list[float]]) -> None:
        for _ in range(TIMES):
            for kind, do in self.kinds.items():
                begin = time.monotonic()
                do()
                into[kind].append(time.monotonic() - begin)


@pytest.fixture
def other(kernel: Any) -> Iterator[Program]:
    code = "from tests.end_to_end.stopped_user import main; main()"
    process = READY_USER.start(code, kernel.name, stderr=None)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_user_that_is_stopped_with_all_it_can_hold_delays_nobody(kernel: Any, other: Program):
    assert other.stdin is not None
    assert other.stdout is not None
    running: dict[str, list[float]] = defaultdict(list)
    stopped: dict[str, list[float]] = defaultdict(list)
    witness = Witness(kernel.name)
    witness.measure(defaultdict(list))  # what is done for the first time takes longer
    for _ in range(ROUNDS):
        witness.measure(running)
        other.stdin.write("\n")
        other.stdin.flush()
        wait_until(lambda: state_of(other.pid) == "T")
        witness.measure(stopped)
        state = kernel.state()
        os.kill(other.pid, signal.SIGCONT)
        assert other.stdout.readline() == f"{REQUESTS + ENDING}\n"
        check_held(state, other.pid)
    for kind in witness.kinds:
        usual, meanwhile = statistics.median(running[kind]), statistics.median(stopped[kind])
        print(f"{kind}: {usual * 1e6:.0f} us, beside it stopped {meanwhile * 1e6:.0f} us, "
              f"longest {max(stopped[kind]) * 1e3:.1f} ms")  # fmt: skip
        assert meanwhile <= SLOWER * usual + BESIDE_S, (kind, usual, meanwhile)
        assert max(stopped[kind]) < LONGEST_S, (kind, max(stopped[kind]))
    witness.process.close()


def check_held(state: dict[str, Any], pid: int) -> None:
    """It did hold what it was to hold while it was stopped."""
    (session,) = (one for one in state["server"]["sessions"] if one["pid"] == pid)
    assert session["in_flight"] >= REQUESTS
    assert session["locked_pages"] * 4096 >= LOCKED_BYTES
    queue_pairs = state["hca"]["device"]["qps"].values()
    assert any(qp["send"]["outstanding"] == ENTRIES for qp in queue_pairs)
    (full,) = (
        cq for cq in state["hca"]["device"]["cqs"].values() if cq["size"] >= ENTRIES and
        cq["producer"] == ENTRIES and cq["consumer"] == 0
    )  # fmt: skip
    assert full["producer"] == ENTRIES
