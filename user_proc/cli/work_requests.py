"""`softhca show wr`: what a queue pair was last asked to do, as the HCA finds it in its queues.

What the rings hold is their owner's: values no program should have written are shown as numbers.

Rules: imported when it is called; main thread only.
Spec: shared/verb_codes.py (IOCTL_INSPECT_QUEUE_PAIR); docs/looking-inside.md.
"""

import errno
import json
from typing import Any, Final

from shared.verb_codes import (
    INSPECT_OUTPUT_LENGTH,
    INSPECT_QUEUE_PAIR,
    IOCTL_INSPECT_QUEUE_PAIR,
    VERB_RESULT,
)
from shared.verbs_enums import ibv_send_flags, ibv_wc_status, ibv_wr_opcode
from user_proc.cli.columns import Column
from user_proc.cli.device_figures import HcaSilent
from user_proc.cli.hca_control import hca_control
from user_proc.errors import SofthcaError
from user_proc.verbs.utils import text_of_gid

Told = dict[str, Any]
_NS_PER_S: Final = 1_000_000_000
_OPCODES: Final = {int(one): one.name.removeprefix("IBV_WR_").lower() for one in ibv_wr_opcode}
_STATUSES: Final = {int(one): one.name.removeprefix("IBV_WC_").lower() for one in ibv_wc_status}
_FLAGS: Final = {int(one): one.name.removeprefix("IBV_SEND_").lower() for one in ibv_send_flags}
_WITH_IMMEDIATE: Final = frozenset(
    {
        ibv_wr_opcode.IBV_WR_SEND_WITH_IMM,
        ibv_wr_opcode.IBV_WR_RDMA_WRITE_WITH_IMM,
        ibv_wr_opcode.IBV_WR_SEND_WITH_INV,
        ibv_wr_opcode.IBV_WR_LOCAL_INV,
    }
)
_REMOTE: Final = frozenset(
    {
        ibv_wr_opcode.IBV_WR_RDMA_WRITE,
        ibv_wr_opcode.IBV_WR_RDMA_WRITE_WITH_IMM,
        ibv_wr_opcode.IBV_WR_RDMA_READ,
        ibv_wr_opcode.IBV_WR_ATOMIC_CMP_AND_SWP,
        ibv_wr_opcode.IBV_WR_ATOMIC_FETCH_AND_ADD,
    }
)
_ATOMIC: Final = frozenset(
    {ibv_wr_opcode.IBV_WR_ATOMIC_CMP_AND_SWP, ibv_wr_opcode.IBV_WR_ATOMIC_FETCH_AND_ADD}
)


class NoSuchQueuePair(SofthcaError):
    """The HCA has no queue pair of that number."""


def posted_requests(name: str, queue_pair: int) -> Told:
    """Ask a kernel's HCA for what a queue pair was last asked to do."""
    output = bytearray(INSPECT_OUTPUT_LENGTH)
    with hca_control(name) as device:
        length = device.device_io_control(
            IOCTL_INSPECT_QUEUE_PAIR, INSPECT_QUEUE_PAIR.pack(queue_pair), output
        )
    number, *_ = VERB_RESULT.unpack_from(output)
    if number == errno.EINVAL:
        raise NoSuchQueuePair(
            f"the HCA of kernel {name!r} has no queue pair {queue_pair:#x} (one in Reset is the "
            f"driver's alone): 'softhca show qp --name {name}' lists them"
        )
    if number:
        raise HcaSilent(
            f"the HCA of kernel {name!r} does not answer: "
            f"'softhca show device --name {name}' tells its state"
        )
    told: Told = json.loads(bytes(output[VERB_RESULT.size : length]))
    return told


def request_rows(told: Told) -> list[Told]:
    """Return the requests, the oldest of each queue first; `ago_ns` is since they completed."""
    now_ns = told["queue_pair"]["now_ns"]
    rows = []
    for queue in ("send", "receive"):
        found = sorted(told[queue].values(), key=lambda request: int(request["position"]))
        rows += [_row(queue, request, now_ns) for request in found]
    return rows


def _row(queue: str, request: Told, now_ns: int) -> Told:
    when = request.get("when_ns")
    row = {"queue": queue, **request}
    status = request.get("status")
    row["status"] = None if status is None else _STATUSES.get(status, str(status))
    row["ago_ns"] = None if when is None else max(0, now_ns - when)
    row["elements"] = [
        {"address": address, "length": length, "lkey": key}
        for address, length, key in request.get("elements", ())
    ]
    if queue == "receive" or "opcode" not in request:
        return row
    opcode = request["opcode"]
    row["opcode"] = _OPCODES.get(opcode, str(opcode))
    row["flags"] = _flags(request["flags"])
    if opcode not in _WITH_IMMEDIATE:
        del row["imm_data"]
    if opcode not in _REMOTE:
        row.pop("remote_address", None)
        row.pop("rkey", None)
    if opcode not in _ATOMIC:
        row.pop("compare_add", None)
        row.pop("swap", None)
    return row


def _flags(flags: int) -> list[str]:
    names = [name for flag, name in _FLAGS.items() if flags & flag]
    unknown = flags & ~sum(_FLAGS)
    return [*names, hex(unknown)] if unknown else names


def _elements(elements: list[Told]) -> str:
    return " ".join(f"{one['address']:#x}+{one['length']}/{one['lkey']:#x}" for one in elements)


def _ago(nanoseconds: int) -> str:
    return f"{nanoseconds / _NS_PER_S:.6f} s ago"


COLUMNS: Final = (
    Column("position", "POSITION"),
    Column("queue", "QUEUE"),
    Column("opcode", "OPCODE"),
    Column("flags", "FLAGS", ",".join, may_go=True),
    Column("elements", "ADDRESS+LENGTH/KEY", _elements),
    Column("elements_claimed", "ELEMENTS CLAIMED", may_go=True),
    Column("inline_length", "INLINE", may_go=True),
    Column("remote_address", "REMOTE ADDRESS", hex, may_go=True),
    Column("rkey", "REMOTE KEY", hex, may_go=True),
    Column("compare_add", "COMPARE OR ADD", hex, may_go=True),
    Column("swap", "SWAP", hex, may_go=True),
    Column("remote_qpn", "REMOTE QP", hex, may_go=True),
    Column("remote_qkey", "Q_KEY", hex, may_go=True),
    Column("dlid", "LID", hex, may_go=True),
    Column("dgid", "GID", lambda digits: text_of_gid(bytes.fromhex(digits)), may_go=True),
    Column("imm_data", "IMMEDIATE", hex, may_go=True),
    Column("progress", "PROGRESS"),
    Column("status", "STATUS", may_go=True),
    Column("byte_len", "BYTES", may_go=True),
    Column("ago_ns", "WHEN", _ago, may_go=True),
)
