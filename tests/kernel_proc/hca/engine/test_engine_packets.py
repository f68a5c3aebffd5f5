"""Records by themselves: bytes and back, and a whole conversation that goes as bytes only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.hca import packets
from kernel_proc.hca.packets import Answer, PacketError, Path, Request
from kernel_proc.hca.port import Port
from tests.kernel_proc.hca.engine.engine_bench import Region, User, pair, wr
from tests.kernel_proc.hca.hca_bench import Bench

U8, U16, U24, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 24, 32, 64))
PATHS = st.builds(
    Path, U16, U16, U8, U16, st.integers(8, 12), st.sampled_from([b"", bytes(range(40))])
)
FIELDS = {
    "opcode": U8, "flags": U8, "psn": U24, "packets": U32, "length": U32, "offset": U32,
    "address": U64, "rkey": U32, "imm_data": U32, "compare_add": U64, "swap": U64, "qkey": U32,
    "srqn": U32,
}  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> Request:
    made = Request(draw(PATHS), draw(U8), draw(U24), draw(U24))
    for name, values in FIELDS.items():
        setattr(made, name, draw(values))
    parts = draw(st.lists(st.binary(max_size=20), max_size=3))
    made.data = [memoryview(part) for part in parts]
    return made


def values(request: Request) -> list[object]:
    names = [name for name in Request.__slots__ if name != "data"]
    return [*(getattr(request, name) for name in names), request.payload()]


@given(requests())
def test_a_request_is_its_bytes(request_made: Request):
    data = request_made.encode()
    again = Request.decode(data)
    assert values(again) == values(request_made)
    assert again.encode() == data


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_an_error(data: bytes):
    try:
        again = Request.decode(data)
    except PacketError:
        return
    assert values(Request.decode(again.encode())) == values(again)


@given(st.integers(0, packets.WAIT), U64, st.binary(max_size=40))
def test_an_answer_is_its_bytes(kind: int, value: int, data: bytes):
    answer = Answer(kind, value, memoryview(data))
    again = Answer.decode(answer.encode())
    assert (again.kind, again.value, bytes(again.data)) == (kind, value, data)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_answer_or_an_error(data: bytes):
    try:
        assert Answer.decode(data).kind <= packets.WAIT
    except PacketError:
        assert len(data) < 16 or data[0] > packets.WAIT


def over_a_wire(bench: Bench) -> list[int]:
    """Have every request and answer of a device go as bytes; return the sizes that went."""
    sizes: list[int] = []
    receive = bench.tables.engine.arrivals.receive

    def carry(port: Port, request: Request) -> Answer:
        data = request.encode()
        answer = receive(port, Request.decode(data)).encode()
        sizes.extend((len(data), len(answer)))
        return Answer.decode(answer)

    for port in bench.tables.ports:
        port.join(bench.tables.ports, carry)
    return sizes


@pytest.mark.parametrize("length", [0, 5, 70_000])
def test_a_conversation_needs_nothing_but_the_bytes(bench: Bench, length: int):
    sizes = over_a_wire(bench)
    one, other = pair(bench)
    near, far = Region(bench, 1 << 17), Region(bench, 1 << 17)
    sent, was = near.fill(1), far.fill(2)
    other.receive([far.at(0, 100), far.at(300, 1 << 16), far.at(1 << 16, 1 << 15)])
    one.send(wr("SEND_WITH_IMM"), [near.at(0, length)], imm=9)
    one.send(wr("RDMA_READ"), [near.at(80_000, 1000)], remote=(far.start + 120_000, far.key))
    one.send(
        wr("ATOMIC_CMP_AND_SWP"), [near.at(90_000, 8)], remote=(far.start + 130_000, far.key),
        compare=int.from_bytes(was[130_000:130_008], "little"), swap=5,
    )  # fmt: skip
    assert [c.status for c in one.sends()] == [0, 0, 0]
    assert [(c.byte_len, c.imm_data) for c in other.receives()] == [(length, 9)]
    assert far.view[: min(100, length)] == sent[: min(100, length)]
    assert near.view[80_000:81_000] == was[120_000:121_000]
    assert near.view[90_000:90_008] == was[130_000:130_008]
    assert int.from_bytes(far.view[130_000:130_008], "little") == 5
    assert len(sizes) == 6
    assert max(sizes) > length


def test_errors_go_as_bytes_too(bench: Bench):
    over_a_wire(bench)
    one, other = User(bench, 2000, rnr_retry=0), User(bench, 2001)
    one.connect(other)
    other.connect(one)
    one.send(wr("SEND"))
    assert [c.status for c in one.sends()] == [13]
