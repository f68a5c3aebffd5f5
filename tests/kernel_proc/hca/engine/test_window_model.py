"""Random binds, invalidations, resets and accesses against a model of what windows grant."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from tests.kernel_proc.hca.engine.engine_bench import Region, User, engine_bench, wr
from tests.kernel_proc.hca.engine.window_bench import (
    ATOMIC,
    BINDABLE,
    LENGTH,
    READ,
    WRITE,
    ZERO_BASED,
    Party,
    Window,
)

NEEDS = {"RDMA_WRITE": WRITE, "RDMA_READ": READ, "ATOMIC_FETCH_AND_ADD": ATOMIC}
PAIRS = ((2000, 2001), (2010, 2011))
WINDOWS = st.integers(0, 3)
SIDES = st.integers(0, 1)


@dataclass
class Bound:
    """What a window is bound to, as the model has it."""

    region: int
    offset: int
    length: int
    access: int
    queue_pair: int


@dataclass
class Modelled:
    """A window and what is known of it."""

    window: Window
    bound: Bound | None = None
    keys: list[int] = field(default_factory=list)


class WindowMachine(RuleBasedStateMachine):
    """Two owners of one domain, their peers, two regions, two windows of each type."""

    @initialize()
    def begin(self) -> None:
        bench = engine_bench()
        self.bench = bench
        self.party = Party(bench)
        self.pairs: list[tuple[User, User]] = [
            (self.party.owner, self.party.peer),
            self.party.others,
        ]
        # The second region is only read by its owner, so nobody may be given more.
        flags = (BINDABLE, BINDABLE & ~abi.MPT_FLAG_LOCAL_WRITE)
        self.regions = [Region(bench, LENGTH, 0x100000 * (1 + n), flags=flags[n]) for n in (0, 1)]
        self.memory = [bytearray(region.fill(n)) for n, region in enumerate(self.regions)]
        self.near = bytearray(self.party.near.fill(9))
        self.windows = [Modelled(Window(bench, kind)) for kind in (1, 1, 2, 2)]

    def renew(self, side: int) -> None:
        """Bring a pair that failed back to service; the owner's type 2 windows are free then."""
        for user in self.pairs[side]:
            user.bench.ok(op.ERR2RST_QPEE, modifier=user.qpn, inbox=user._mailbox(), opmod=3)
            user.sends()
            user.bench.ok(op.RST2INIT_QPEE, modifier=user.qpn, inbox=user._mailbox())
            assert user.run(op.INIT2RTR_QPEE) == op.CMD_STAT_OK
            assert user.run(op.RTR2RTS_QPEE) == op.CMD_STAT_OK
        for one in self.windows:
            if one.bound is not None and one.bound.queue_pair == PAIRS[side][0]:
                one.bound = None

    @rule(
        number=WINDOWS, side=SIDES, region=SIDES, variant=st.integers(0, 255),
        offset=st.sampled_from([0, 8, 4090, LENGTH - 64]),
        length=st.sampled_from([0, 8, 64, 5000, LENGTH]),
        access=st.sampled_from([READ, WRITE, READ | WRITE | ATOMIC, READ | ZERO_BASED, 1 << 11]),
    )  # fmt: skip
    def bind(
        self, number: int, side: int, region: int, variant: int, offset: int, length: int,
        access: int,
    ) -> None:  # fmt: skip
        one = self.windows[number]
        is_type_2 = one.window.kind == 2
        new_key = one.window.key & ~0xFF | variant
        good = access != 1 << 11
        good &= (one.bound is None and length > 0) if is_type_2 else not access & ZERO_BASED
        if length:
            good &= offset + length <= LENGTH
            good &= region == 0 or not access & (WRITE | ATOMIC)
        target = self.regions[region]
        status = self.party.bind(
            one.window, self.pairs[side][0], new_rkey=new_key, lkey=target.key,
            address=target.start + offset, length=length, access=access,
        )  # fmt: skip
        assert status == (ops.SUCCESS if good else ops.MW_BIND_ERR)
        if not good:
            self.renew(side)
            return
        one.keys.append(new_key)
        bound = Bound(region, offset, length, access, PAIRS[side][0] if is_type_2 else 0)
        one.bound = bound if length else None

    @rule(number=WINDOWS, side=SIDES, remote=st.booleans(), other_key=st.booleans())
    def invalidate(self, number: int, side: int, remote: bool, other_key: bool) -> None:
        one = self.windows[number]
        owner, peer = self.pairs[side]
        good = one.window.kind == 2 and not other_key
        good &= one.bound is None or one.bound.queue_pair == owner.qpn
        key = one.window.key ^ other_key
        if remote:
            owner.receive()
            peer.send(wr("SEND_WITH_INV"), imm=key)
            assert [c.status for c in peer.sends()] == [0 if good else ops.REM_ACCESS_ERR]
            assert [c.status for c in owner.receives()] == [0 if good else ops.REM_INV_REQ_ERR]
        else:
            owner.send(wr("LOCAL_INV"), imm=key)
            assert [c.status for c in owner.sends()] == [0 if good else ops.LOC_QP_OP_ERR]
        if good:
            one.bound = None
        else:
            self.renew(side)

    @rule(side=SIDES)
    def reset(self, side: int) -> None:
        self.renew(side)

    @rule(
        number=WINDOWS, side=SIDES, name=st.sampled_from(list(NEEDS)), old=st.booleans(),
        offset=st.sampled_from([0, 8, 56, 4096, 4984, LENGTH - 64, LENGTH]),
    )  # fmt: skip
    def access(self, number: int, side: int, name: str, old: bool, offset: int) -> None:
        one = self.windows[number]
        key = one.keys[0] if old and one.keys else one.window.key
        bound = one.bound
        zero = bound is not None and bool(bound.access & ZERO_BASED)
        base = 0 if zero or bound is None else self.regions[bound.region].start
        address = base + offset
        good = bound is not None and key == one.window.key
        if bound is not None:
            first = 0 if zero else bound.offset
            good &= first <= offset and offset + 8 <= first + bound.length
            good &= bound.queue_pair in (0, PAIRS[side][0])
            good &= bool(bound.access & NEEDS[name])
        expected = 0 if good else ops.REM_ACCESS_ERR
        if good and name.startswith("ATOMIC") and address % 8:
            expected = ops.REM_INV_REQ_ERR
        assert self.party.access(name, key, address, by=self.pairs[side][1]) == expected
        if expected:
            self.renew(side)
            return
        assert bound is not None
        place = offset + (bound.offset if zero else 0)
        memory = self.memory[bound.region]
        if name == "RDMA_WRITE":
            memory[place : place + 8] = self.near[:8]
            return
        was = bytes(memory[place : place + 8])
        self.near[:8] = was
        if name.startswith("ATOMIC"):
            memory[place : place + 8] = was  # the operand is 0

    @invariant()
    def memory_and_counts_are_as_said(self) -> None:
        if not hasattr(self, "regions"):
            return
        for number, region in enumerate(self.regions):
            assert region.view == self.memory[number]
            found = self.bench.tables.translation.named(region.key)
            assert found is not None
            bound = [one for one in self.windows if one.bound and one.bound.region == number]
            assert found.windows == len(bound)
        assert self.party.near.view == self.near


TestWindows = WindowMachine.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
