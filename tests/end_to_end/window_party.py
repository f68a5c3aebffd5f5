"""The owner of memory windows as a program with an HCA process: what tables of binds are done with.

Stands where `Party` and `Window` of the engine's bench do, with regions by reg_mr and entries that
are stored in the ring without the library's checks.
"""

from typing import Any

from kernel_proc.hca_abi import contexts as abi
from shared.verbs_enums import ibv_access_flags
from shared.wqe_layout import SEND_HEAD, SendHead
from tests.end_to_end.traffic_end import End
from tests.end_to_end.window_end import is_held
from tests.kernel_proc.hca.engine.engine_bench import NO_VECTOR, SIGNALED, Region
from tests.kernel_proc.hca.engine.window_bench import BINDABLE, LENGTH, Party, Window
from tests.kernel_proc.hca.hca_bench import PD as DOMAIN
from user_proc.verbs.completion import WC
from user_proc.verbs.mr import MR, MW, MREx

#: What the tables call a key that names nothing; here it might.
UNKNOWN, NOT_THERE = 0x7700, 0x0100_0000
_REMOTE = int(ibv_access_flags.IBV_ACCESS_REMOTE_WRITE | ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC)
_RIGHTS = (
    (abi.MPT_FLAG_LOCAL_WRITE, ibv_access_flags.IBV_ACCESS_LOCAL_WRITE),
    (abi.MPT_FLAG_REMOTE_READ, ibv_access_flags.IBV_ACCESS_REMOTE_READ),
    (abi.MPT_FLAG_REMOTE_WRITE, ibv_access_flags.IBV_ACCESS_REMOTE_WRITE),
    (abi.MPT_FLAG_ATOMIC, ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC),
    (abi.MPT_FLAG_BIND, ibv_access_flags.IBV_ACCESS_MW_BIND),
    (abi.MPT_FLAG_ZERO_BASED, ibv_access_flags.IBV_ACCESS_ZERO_BASED),
)


def access_of(flags: int) -> int:
    """The access of reg_mr that gives a region these flags."""
    access = sum(int(right) for flag, right in _RIGHTS if flags & flag)
    if not flags & abi.MPT_FLAG_LOCAL_WRITE:
        access &= ~_REMOTE  # refused by reg_mr, and nothing to a bind
    return access


class VerbsBench:
    """Gives regions; their addresses begin where a table says, whatever memory they have."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.regions: dict[int, tuple[MR, int]] = {}

    def region(self, length: int, *, start: int, flags: int, pd: int = DOMAIN) -> tuple[int, int]:
        domain = self.end.pd if pd == DOMAIN else self.end.foreign_pd
        access = access_of(flags)
        made = MREx(domain, length, access, iova=0 if flags & abi.MPT_FLAG_ZERO_BASED else start)
        self.regions[made.rkey] = made, access
        return made.rkey, 0


class VerbsOwner:
    """A queue pair that is connected to itself, posted to without the library's checks."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.end.connect(end.qp.qp_num)

    def renew(self) -> None:
        self.end.connect(self.end.renew())

    @property
    def state(self) -> int:
        return self.end.state()

    def put_send(
        self, opcode: int, *, flags: int = SIGNALED, imm: int = 0, vector: bytes = NO_VECTOR
    ) -> None:
        head = SendHead(opcode, flags, 0, imm, 0, 0, 0, 0, 0, vector, 0, 0, 0)
        ring = self.end.qp._rings.send
        assert ring is not None
        with ring.lock:
            ring.put(9, SEND_HEAD.pack(*head))

    def ring_send(self) -> None:
        ring = self.end.qp._rings.send
        assert ring is not None
        with ring.lock:
            ring.publish()

    def send(self, opcode: int, **arguments: Any) -> None:
        self.put_send(opcode, **arguments)
        self.ring_send()

    def sends(self) -> list[WC]:
        return self.end.poll(1)


class VerbsParty(Party):
    """An owner with a region to bind windows to."""

    def __init__(self, kernel: str) -> None:
        self.end = End(kernel)
        self.bench: Any = VerbsBench(self.end)
        self.owner: Any = VerbsOwner(self.end)
        self.region = Region(self.bench, LENGTH, flags=BINDABLE)

    def begin(self) -> None:
        """Give back what the case before has made."""
        regions = self.bench.regions
        for key in [key for key in regions if key != self.region.key]:
            regions.pop(key)[0].close()

    def possible(self, changes: dict[str, int], window: "VerbsWindow") -> dict[str, int]:
        """A key that names nothing, wherever a table says one that may name something here."""
        own = {"lkey": self.region.key, "new_rkey": window.key}
        return {
            name: own[name] ^ NOT_THERE if value == UNKNOWN and name in own else value
            for name, value in changes.items()
        }

    def is_bound(self, changes: dict[str, int]) -> bool:
        """Whether windows are bound to the region that a bind names."""
        named = self.bench.regions.get(changes.get("lkey"), self.bench.regions[self.region.key])
        return is_held(*named)


class VerbsWindow(Window):
    """A window by alloc_mw; `key` is what it has been bound by last."""

    def __init__(self, party: VerbsParty, kind: int) -> None:
        self.kind = kind
        self.mw = MW(party.end.pd, kind)
        self.key = self.mw.rkey
