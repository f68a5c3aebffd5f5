"""Memory regions: memory pinned, translated and given a key. One path for all memory.

    MDL -> probe and lock (user) | build for nonpaged pool (kernel) -> bus runs -> page size
        -> MTT entries -> WRITE_MTT -> SW2HW_MPT

A step that fails undoes all before it. MRs and queue buffers are regions alike.

Rules: PASSIVE_LEVEL, all but `forget` wait; a user's memory in the context of its process.
Spec: Linux mthca_provider.c, mthca_mr.c; docs/memory-registration.md.
"""

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.memory_keys import MemoryKeys, MttRange, OwnedKey
from kernel_proc.driver.page_locks import PinnedPages, pin_kernel, pin_mdl, pin_user
from kernel_proc.driver.page_runs import SMALLEST_SHIFT, mtt_entries, page_shift
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import contexts as abi
from shared.segment import PAGE_SIZE
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_access_flags as access_flags

if TYPE_CHECKING:
    from kernel_proc.driver.buffer_allocator import QueueBuffer
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.memory.mdl import Mdl

LOCAL_WRITE: Final = int(access_flags.IBV_ACCESS_LOCAL_WRITE)
REMOTE_WRITE: Final = int(access_flags.IBV_ACCESS_REMOTE_WRITE)
REMOTE_READ: Final = int(access_flags.IBV_ACCESS_REMOTE_READ)
REMOTE_ATOMIC: Final = int(access_flags.IBV_ACCESS_REMOTE_ATOMIC)
MW_BIND: Final = int(access_flags.IBV_ACCESS_MW_BIND)
ZERO_BASED: Final = int(access_flags.IBV_ACCESS_ZERO_BASED)

_WRITES: Final = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC
_RIGHTS: Final = (
    (LOCAL_WRITE, abi.MPT_FLAG_LOCAL_WRITE),
    (REMOTE_WRITE, abi.MPT_FLAG_REMOTE_WRITE),
    (REMOTE_READ, abi.MPT_FLAG_REMOTE_READ),
    (REMOTE_ATOMIC, abi.MPT_FLAG_ATOMIC),
    (MW_BIND, abi.MPT_FLAG_BIND),
)
_ALWAYS: Final = abi.MPT_FLAG_REGION | abi.MPT_FLAG_LOCAL_READ | abi.MPT_FLAG_MIO


class Translated:
    """Pinned memory with its entries in the MTT; `start` is the region's first address."""

    __slots__ = ("length", "mtt", "pages", "shift", "start", "zero_based")

    def __init__(
        self, pages: PinnedPages, start: int, length: int, shift: int, zero_based: bool
    ) -> None:
        self.pages = pages
        self.start = start
        self.length = length
        self.shift = shift
        self.zero_based = zero_based
        self.mtt: MttRange | None = None


class Region(OwnedKey):
    """One key and what it names."""

    __slots__ = ("access", "context", "pdn", "translated")

    def __init__(
        self, context: "Context | None", key: int, pdn: int, access: int, translated: Translated
    ) -> None:
        super().__init__(key)
        self.context = context
        self.pdn = pdn
        self.access = access
        self.translated = translated

    @property
    def lkey(self) -> int:
        """The key for local use."""
        return self.key

    @property
    def rkey(self) -> int:
        """The key for the other side; the same."""
        return self.key

    @property
    def length(self) -> int:
        """Bytes of the region."""
        return self.translated.length

    @property
    def page_shift(self) -> int:
        """Log2 of the page size its translations have."""
        return self.translated.shift


class Regions:
    """All regions of one life of the HCA."""

    def __init__(self, driver: "HcaDriver") -> None:
        self._driver = driver
        self.keys = MemoryKeys(driver)
        self._live: dict[Context | None, dict[Region, None]] = {}
        self._orphans: dict[Region, None] = {}

    # Making

    def register_user(
        self,
        context: "Context",
        address: int,
        length: int,
        *,
        access: int,
        iova: int,
        pdn: int,
    ) -> Region:
        """Register memory of the calling process.

        EINVAL for no bytes, a range that wraps, or an `iova` that differs from the address within
        a page (0 and IBV_ACCESS_ZERO_BASED excepted: addresses then count from the first byte);
        EFAULT for memory that is not there; ENOMEM.
        """
        translated = self.translate_user(address, length, access, iova)
        return self._make(context, pdn, access, translated)

    def register_kernel(self, buffer: "QueueBuffer", pdn: int, access: int) -> Region:
        """Register kernel memory, whose addresses count from 0."""
        pages = pin_kernel(self._driver.processor, buffer)
        return self._make(None, pdn, access, self._translate(pages, 0, buffer.length, False))

    def register_mdl(self, mdl: "Mdl", pdn: int, access: int) -> Region:
        """Register what a kernel client's MDL describes, which stays its own to unlock.

        Addresses count from its first byte. EINVAL for no bytes, EFAULT for pages that no device
        reaches, or that were not locked for what the access allows.
        """
        if not mdl.byte_count:
            raise VerbRefused(errno.EINVAL, VerbReason.LENGTH_ZERO)
        pages = pin_mdl(self._driver.processor, mdl, bool(access & _WRITES))
        translated = self._translate(pages, mdl.byte_offset, mdl.byte_count, True)
        return self._make(None, pdn, access, translated)

    def register_pages(
        self,
        context: "Context",
        pages: PinnedPages,
        start: int,
        length: int,
        *,
        access: int,
        pdn: int,
    ) -> Region:
        """Register pages that are held for a user; addresses count from byte `start` of them."""
        return self._make(context, pdn, access, self._translate(pages, start, length, True))

    def translate_user(self, address: int, length: int, access: int, iova: int) -> Translated:
        """Pin and translate memory of the calling process, for a key to come."""
        if not length:
            raise VerbRefused(errno.EINVAL, VerbReason.LENGTH_ZERO)
        if address + length > 1 << 64 or iova + length > 1 << 64:
            raise VerbRefused(errno.EINVAL, VerbReason.RANGE_WRAPS, address, length)
        inside = address % PAGE_SIZE
        zero_based = bool(access & ZERO_BASED) or (not iova and bool(inside))
        start = inside if zero_based else iova
        if start % PAGE_SIZE != inside:
            raise VerbRefused(errno.EINVAL, VerbReason.IOVA_MISALIGNED, address, iova)
        pages = pin_user(self._driver.processor, address, length, bool(access & _WRITES))
        return self._translate(pages, start, length, zero_based)

    def _translate(
        self, pages: PinnedPages, start: int, length: int, zero_based: bool
    ) -> Translated:
        try:
            shift = page_shift(pages.runs(), start)
            translated = Translated(pages, start, length, shift, zero_based)
            entries = mtt_entries(pages.runs(), shift)
            translated.mtt = self.keys.make_translations(entries)
        except BaseException:
            pages.unpin()
            raise
        return translated

    def _make(
        self, context: "Context | None", pdn: int, access: int, translated: Translated
    ) -> Region:
        try:
            key = self.keys.allocate_key(context.owner if context is not None else None)
        except BaseException:
            self.give_up(translated)
            raise
        region = Region(context, key, pdn, access, translated)
        try:
            self.publish(region)
        except BaseException:
            if region.uncertain:
                self._orphan(region)
            else:
                self.keys.free_key(key)
                self.give_up(translated)
            raise
        self._live.setdefault(context, {})[region] = None
        return region

    def _orphan(self, region: Region) -> None:
        """Keep the pages of a region that nobody has and the HCA may grant, until `forget`."""
        assert region.translated.mtt is not None
        self.keys.free_key(region.key, for_good=True)
        self.keys.free_translations(region.translated.mtt, for_good=True)
        self._orphans[region] = None

    def publish(self, region: Region) -> None:
        """Have the HCA grant accesses by the region's key, as the region is now."""
        translated = region.translated
        assert translated.mtt is not None
        flags = _ALWAYS
        for right, flag in _RIGHTS:
            if region.access & right:
                flags |= flag
        if translated.zero_based:
            flags |= abi.MPT_FLAG_ZERO_BASED
        entry = abi.MptEntry(
            flags=flags,
            page_size=translated.shift - SMALLEST_SHIFT,
            key=region.key,
            pd=region.pdn,
            start=translated.start,
            length=translated.length,
            mtt_address=translated.mtt.address,
            mtt_size=1 << translated.mtt.order,
        )
        self.keys.grant(region, entry)

    # Ending

    def withdraw(self, region: Region) -> None:
        """Have the HCA grant nothing by the region's key any more."""
        self.keys.revoke(region)

    def release(self, region: Region) -> None:
        """Deregister; a refusal leaves the region as it was.

        At the end of its context windows do not keep it: those of another that shares the domain.
        """
        closing = region.context is not None and region.context.closing
        self.keys.revoke(region, unbind=closing)
        self._forget(region)
        self.keys.free_key(region.key, for_good=region.uncertain)
        self.give_up(region.translated, for_good=region.uncertain)

    def give_up(self, translated: Translated, *, for_good: bool = False) -> None:
        """Free translations no key uses and unpin the memory."""
        if translated.mtt is not None:
            self.keys.free_translations(translated.mtt, for_good=for_good)
            translated.mtt = None
        translated.pages.unpin()

    def forget(self, context: "Context") -> None:
        """Unpin what a context could not release before its end; its keys stay taken.

        Its segments leave the bus with its process, so the HCA reaches nothing by them.
        """
        for region in [one for one in self._orphans if one.context is context]:
            with suppress(VerbRefused):
                self.withdraw(region)
            region.translated.pages.unpin()
            del self._orphans[region]
        for region in self._live.pop(context, ()):
            region.translated.pages.unpin()

    def _forget(self, region: Region) -> None:
        regions = self._live.get(region.context, {})
        regions.pop(region, None)
        if not regions:
            self._live.pop(region.context, None)

    # Rules

    def require_arena(self, context: "Context", address: int, length: int) -> None:
        """Refuse with EINVAL unless a range lies inside one arena of the context's process."""
        space = context.process.address_space if context.process is not None else None
        if length and space is not None and address + length <= 1 << 64:
            pieces = space.pieces(address, length)
            if len(pieces) == 1 and pieces[0][0] is not None:
                return
        raise VerbRefused(errno.EINVAL, VerbReason.NOT_IN_ONE_ARENA, address, length)

    def inspect(self) -> dict[str, Any]:
        """Return how many regions there are, their bytes, and the use of both tables."""
        return {
            "regions": sum(map(len, self._live.values())),
            "bytes": sum(region.length for some in self._live.values() for region in some),
            **self.keys.inspect(),
        }
