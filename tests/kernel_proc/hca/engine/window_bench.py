"""Memory windows on the bench: an owner who binds them, its peer, and others who have the key."""

from typing import Any

from kernel_proc.hca.memory_window import MemoryWindow
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from shared.verbs_enums import ibv_access_flags
from shared.wqe_layout import bind_segment
from tests.kernel_proc.hca.engine.engine_bench import ALL_RIGHTS, SIGNALED, Region, User, wr
from tests.kernel_proc.hca.hca_bench import PD, Bench

LENGTH = 3 * 4096
TYPES = (1, 2)
WRITE = int(ibv_access_flags.IBV_ACCESS_REMOTE_WRITE)
READ = int(ibv_access_flags.IBV_ACCESS_REMOTE_READ)
ATOMIC = int(ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC)
ZERO_BASED = int(ibv_access_flags.IBV_ACCESS_ZERO_BASED)
BINDABLE = ALL_RIGHTS | abi.MPT_FLAG_BIND


class Window:
    """A window; `key` is what it has been bound by last, or was allocated as."""

    def __init__(self, bench: Bench, kind: int, pd: int = PD) -> None:
        self.bench = bench
        self.kind = kind
        bench._next_index += 1
        self.index = bench._next_index
        self.key = self.index << 8 | 0x50
        flags = abi.MPT_FLAG_TYPE_2 if kind == 2 else 0
        entry = abi.MptEntry(flags, 0, self.key, pd, 0, 0)
        # The key's low bits are a generation: what the MPT index is has to come out of it.
        bench.ok(op.SW2HW_MPT, modifier=self.index, inbox=abi.MPT_ENTRY.pack(*entry))

    @property
    def next_key(self) -> int:
        return self.key & ~0xFF | (self.key + 1) & 0xFF

    @property
    def device_object(self) -> MemoryWindow:
        found = self.bench.tables.translation.entry(self.index)
        assert isinstance(found, MemoryWindow)
        return found

    def give_back(self) -> int:
        return self.bench.run(op.HW2SW_MPT, modifier=self.index, opmod=1)


class Party:
    """An owner and a peer of it that are connected, and a region to bind windows to.

    Another pair of the same owner and peer is made when it is asked for: `others`.
    """

    def __init__(self, bench: Bench, **attributes: int) -> None:
        self.bench = bench
        self.attributes = attributes
        self.other_ends: dict[int, User] = {}  # by the peer's number
        self.owner, self.peer = self.pair(2000, 2001)
        self.region = Region(bench, LENGTH, flags=BINDABLE)
        self.near = Region(bench, LENGTH)
        self._others: tuple[User, User] | None = None

    def pair(self, one: int, other: int, **changes: int) -> tuple[User, User]:
        attributes: dict[str, Any] = {**self.attributes, **changes}
        ends = User(self.bench, one, **attributes), User(self.bench, other)
        ends[0].connect(ends[1])
        ends[1].connect(ends[0])
        self.other_ends[other] = ends[0]
        return ends

    @property
    def others(self) -> tuple[User, User]:
        if self._others is None:
            self._others = self.pair(2010, 2011)
        return self._others

    def put_bind(self, window: Window, by: User | None = None, **changes: int) -> int:
        """Store a bind of the whole region with every right, but for what is changed."""
        values = {
            "access": WRITE | READ | ATOMIC,
            "new_rkey": window.next_key,
            "lkey": self.region.key,
            "address": self.region.start,
            "length": self.region.length,
            **changes,
        }
        flags = values.pop("flags", SIGNALED)
        who = by or self.owner
        who.put_send(wr("BIND_MW"), vector=bind_segment(**values), flags=flags)
        return values["new_rkey"]

    def bind(self, window: Window, by: User | None = None, **changes: int) -> int:
        """Do a bind; return its status. If it succeeds the window has its new key."""
        key = self.put_bind(window, by, **changes)
        who = by or self.owner
        who.ring_send()
        (done,) = who.sends()
        if not done.status:
            assert done.opcode == 5  # IBV_WC_BIND_MW
            window.key = key
        return done.status

    def access(
        self, name: str, key: int, address: int | None = None, length: int = 8,
        by: User | None = None,
    ) -> int:  # fmt: skip
        """Have the peer use a key; return the status of its completion."""
        user = by or self.peer
        where = self.region.start if address is None else address
        user.send(wr(name), [self.near.at(0, length)], remote=(where, key), imm=key)
        (done,) = user.sends()
        return done.status
