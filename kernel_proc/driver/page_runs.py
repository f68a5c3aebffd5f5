"""From bus runs to what the HCA's MTT wants: a page size and the address of each page.

One region has one page size: the largest power of two to which every run begins and ends, the
first run's begin and the last one's end excepted, and in which bus and region addresses agree.

Rules: pure; a run is (bus address, length).
Spec: Linux mthca_provider.c (mthca_reg_phys_mr); docs/memory-registration.md.
"""

import sys
from array import array
from collections.abc import Iterable
from typing import Final

from kernel_proc.hca_abi.contexts import MTT_PRESENT

BusRun = tuple[int, int]

SMALLEST_SHIFT: Final = 12
LARGEST_SHIFT: Final = 31
_MOST_BITS: Final = 1 << LARGEST_SHIFT


def page_shift(runs: Iterable[BusRun], start: int) -> int:
    """Return log2 of the largest page that describes `runs` from region address `start` on.

    There is a run. ValueError if not even the smallest page does.
    """
    following = iter(runs)
    bus, length = next(following)
    mask, end = bus ^ start | _MOST_BITS, bus + length
    for bus, length in following:
        mask |= end | bus
        end = bus + length
    shift = (mask & -mask).bit_length() - 1
    if shift < SMALLEST_SHIFT:
        raise ValueError(f"runs that do not lie in pages: {mask:#x}")
    return shift


def mtt_entries(runs: Iterable[BusRun], shift: int) -> bytes:
    """Return the MTT entries of the runs, as a mailbox carries them."""
    page = 1 << shift
    entries = array("Q")
    for bus, length in runs:
        first = bus & -page | MTT_PRESENT
        entries.extend(range(first, bus + length + MTT_PRESENT, page))
    if sys.byteorder == "little":
        entries.byteswap()
    return entries.tobytes()
