"""What may be posted to which kind of queue pair: every opcode, with and without inline data."""

import errno
import itertools

import pytest

from shared.verbs_enums import ibv_qp_type, ibv_send_flags, ibv_wr_opcode
from user_proc.verbs.posting import Unfit, require_send
from user_proc.verbs.wr import SGE, SendWR

KINDS = ("UD", "UC", "RC", "XRC_SEND")
#: Which kinds define an opcode, in their order; `-` are those that do not, `?` not on this device.
TABLE = {
    "RDMA_WRITE": "-xxx",
    "RDMA_WRITE_WITH_IMM": "-xxx",
    "SEND": "xxxx",
    "SEND_WITH_IMM": "xxxx",
    "RDMA_READ": "--xx",
    "ATOMIC_CMP_AND_SWP": "--xx",
    "ATOMIC_FETCH_AND_ADD": "--xx",
    "LOCAL_INV": "-xxx",
    "BIND_MW": "-xxx",
    "SEND_WITH_INV": "-xxx",
    "TSO": "?---",
    "FLUSH": "--??",
    "ATOMIC_WRITE": "--?-",
}
WITH_INLINE = ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "SEND_WITH_INV")
WITHOUT_ELEMENTS = ("LOCAL_INV", "BIND_MW")
INLINE = int(ibv_send_flags.IBV_SEND_INLINE)
CASES = [
    (name, kind, mark, flags)
    for (name, marks), flags in itertools.product(TABLE.items(), (0, INLINE))
    for kind, mark in zip(KINDS, marks, strict=True)
]


def test_the_table_is_whole():
    assert {f"IBV_WR_{name}" for name in TABLE} == {one.name for one in ibv_wr_opcode}
    assert len(CASES) == 13 * 4 * 2
    print(f"{len(CASES)} cases")


class _Handle:
    """Stands for an address handle: only that there is one counts."""


@pytest.mark.parametrize(("name", "kind", "mark", "flags"), CASES)
def test_an_opcode_of_a_kind(name: str, kind: str, mark: str, flags: int):
    elements = [] if name in WITHOUT_ELEMENTS else [SGE(4096, 8, 1)]
    wr = SendWR(0, int(ibv_wr_opcode[f"IBV_WR_{name}"]), len(elements), 0, elements, flags)
    if kind == "UD":
        wr.ah = _Handle()  # type: ignore[assignment]
    if name == "BIND_MW":
        wr._window = 0x100, 2, False
    number = 0
    try:
        require_send(wr, int(ibv_qp_type[f"IBV_QPT_{kind}"]), 4, 64)
    except Unfit as unfit:
        number = unfit.errno
    fits = not flags or name in WITH_INLINE
    assert (
        number == {"x": 0 if fits else errno.EINVAL, "-": errno.EINVAL, "?": errno.EOPNOTSUPP}[mark]
    )
