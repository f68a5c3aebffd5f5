"""Memory windows as the HCA holds them: a key of its own to a part of a region, bound and unbound.

A bound window is reached as a region is, by a translation that begins somewhere in its region's.
The region counts it and is not given back while it is bound.

Spec: IBA vol. 1, 10.6.7; docs/memory-windows.md.
"""

from typing import Final

from kernel_proc.hca.memory_key import MemoryKey
from kernel_proc.hca_abi import contexts as abi

_NO_PD: Final = 1 << 24  # which no queue pair is in
_KEPT: Final = ~(
    abi.MPT_FLAG_ATOMIC
    | abi.MPT_FLAG_REMOTE_WRITE
    | abi.MPT_FLAG_REMOTE_READ
    | abi.MPT_FLAG_PHYSICAL
    | abi.MPT_FLAG_ZERO_BASED
)


class MemoryWindow(MemoryKey):
    """A window; `domain` is its PD, `region` what it is bound to.

    One of type 2 is in `holder`, the windows of the queue pair it is bound to.
    """

    __slots__ = ("domain", "holder", "region")

    def __init__(self, entry: abi.MptEntry) -> None:
        super().__init__(entry)
        self.domain = self.pd
        self.region: MemoryKey | None = None
        self.holder: set[MemoryWindow] | None = None

    @property
    def is_type_2(self) -> bool:
        """Whether it is bound by keys its consumer chooses, and invalidated by requests."""
        return self.flags & abi.MPT_FLAG_TYPE_2 != 0

    def bind(
        self, region: MemoryKey, address: int, length: int, rights: int, *, zero_based: bool
    ) -> None:
        """Grant `rights` (MPT flags) to a range that was checked; what it granted before ends."""
        self.unbind()
        page = 1 << region.page_shift
        inside = (region.start & (page - 1)) + address - region.base
        self.region = region
        region.windows += 1
        self.start = region.start + address - region.base
        self.base = 0 if zero_based else address
        self.length = length
        self.end = self.base + length
        self.page_shift = region.page_shift
        self.first_mtt = region.first_mtt + (inside >> region.page_shift)
        self.flags |= rights | region.flags & abi.MPT_FLAG_PHYSICAL
        if zero_based:
            self.flags |= abi.MPT_FLAG_ZERO_BASED
        self._note(region.key)

    def restrict(self, queue_pair: int, holder: "set[MemoryWindow]") -> None:
        """Grant it to one queue pair alone, until it is unbound."""
        self.pd = _NO_PD
        self.queue_pair = queue_pair
        self.holder = holder
        holder.add(self)

    def unbind(self) -> None:
        """Grant nothing any more."""
        region, self.region = self.region, None
        if region is not None:
            region.windows -= 1
        holder, self.holder = self.holder, None
        if holder is not None:
            holder.discard(self)
        self.close_view()
        self.queue_pair = 0
        self.pd = self.domain
        self.flags &= _KEPT
        self.start = self.base = self.end = self.length = 0
        self._note(0)

    def _note(self, region_key: int) -> None:
        """Have QUERY_MPT tell what it is now."""
        self.entry = self.entry._replace(
            key=self.key, start=self.start, length=self.length, lkey=region_key
        )

    def inspect(self) -> dict[str, object]:
        """Return its key, and what it is bound to."""
        return {
            "key": self.key,
            "region": self.region.key if self.region is not None else 0,
            "address": self.base,
            "length": self.length,
            "rights": [name for name, flag in _RIGHT_NAMES if self.flags & flag],
            "queue_pair": self.queue_pair,
        }


_RIGHT_NAMES: Final = (
    ("remote_write", abi.MPT_FLAG_REMOTE_WRITE),
    ("remote_read", abi.MPT_FLAG_REMOTE_READ),
    ("remote_atomic", abi.MPT_FLAG_ATOMIC),
    ("zero_based", abi.MPT_FLAG_ZERO_BASED),
)
