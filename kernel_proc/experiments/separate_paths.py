"""Two registrations that know nothing of each other: common buffers, and a user's locked pages.

They are what `kernel_proc.driver.pinned_memory` does by one path, written as two: the kernel's
knows the bus address of its memory from AllocateCommonBuffer and needs no list of pages; the
user's locks pages, asks for a scatter/gather list and describes every page of 4 KiB. Both end in
the HCA's two tables, which can have one keeper only.

Rules: PASSIVE_LEVEL, a user's memory in the context of its process; both wait for commands.
Spec: the mail "Using of fast mutexes in WinIb" describes both; WDK, AllocateCommonBuffer,
GetScatterGatherList.
"""

import contextlib
from typing import NamedTuple

from kernel_proc.driver.hca_driver import HcaDriver
from kernel_proc.driver.memory_keys import MemoryKeys, MttRange
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.io_manager import wdm
from kernel_proc.memory.dma_adapter import CommonBuffer, DmaAdapter, ScatterGatherList
from kernel_proc.memory.mdl import Mdl
from kernel_proc.scheduling.wait import USER_MODE
from shared.segment import PAGE_SIZE, round_to_pages

_SMALLEST_SHIFT = 12
_LARGEST = 1 << 31
_FLAGS = abi.MPT_FLAG_REGION | abi.MPT_FLAG_LOCAL_READ | abi.MPT_FLAG_MIO | abi.MPT_FLAG_LOCAL_WRITE


class CommonBufferRegion(NamedTuple):
    """What a kernel client registered."""

    key: int
    mtt: MttRange


class LockedRegion(NamedTuple):
    """What a user registered, and what keeps its pages."""

    key: int
    mtt: MttRange
    mdl: Mdl
    pages: ScatterGatherList


def register_common_buffer(driver: HcaDriver, buffer: CommonBuffer) -> CommonBufferRegion:
    """Register a common buffer: one page of the HCA's as large as its address allows."""
    keys = driver.regions.keys
    length = round_to_pages(buffer.length)
    mask = buffer.bus_address | _LARGEST
    shift = (mask & -mask).bit_length() - 1
    page = 1 << shift
    entries = b"".join(
        (address | abi.MTT_PRESENT).to_bytes(8, "big")
        for address in range(buffer.bus_address, buffer.bus_address + length, page)
    )
    mtt = keys.make_translations(entries)
    try:
        key = _give_key(driver, keys, mtt, shift, 0, length)
    except BaseException:
        keys.free_translations(mtt)
        raise
    return CommonBufferRegion(key, mtt)


def release_common_buffer(driver: HcaDriver, region: CommonBufferRegion) -> None:
    """Deregister a common buffer."""
    keys = driver.regions.keys
    keys.take_from_hardware(region.key)
    keys.free_key(region.key)
    keys.free_translations(region.mtt)


def register_locked(
    driver: HcaDriver, adapter: DmaAdapter, address: int, length: int
) -> LockedRegion:
    """Register memory of the calling process, page by page."""
    keys = driver.regions.keys
    mdl = wdm.allocate_mdl(driver.processor, address, length)
    assert mdl is not None, "an MDL of so many bytes can be made"
    with contextlib.ExitStack() as undo:
        undo.callback(wdm.free_mdl, mdl)
        wdm.probe_and_lock_pages(mdl, USER_MODE, wdm.IO_MODIFY_ACCESS)
        undo.callback(wdm.unlock_pages, mdl)
        pages = _list_pages(driver, adapter, mdl)
        undo.callback(_put_pages, driver, adapter, pages)
        mtt = keys.make_translations(_page_entries(pages))
        undo.callback(keys.free_translations, mtt)
        key = _give_key(driver, keys, mtt, _SMALLEST_SHIFT, address, length)
        undo.pop_all()
    return LockedRegion(key, mtt, mdl, pages)


def _list_pages(driver: HcaDriver, adapter: DmaAdapter, mdl: Mdl) -> ScatterGatherList:
    found: list[ScatterGatherList] = []
    old = driver.processor.raise_irql(wdm.DISPATCH_LEVEL)
    adapter.get_scatter_gather_list(mdl, True, found.append)
    driver.processor.lower_irql(old)
    return found[0]


def _put_pages(driver: HcaDriver, adapter: DmaAdapter, pages: ScatterGatherList) -> None:
    old = driver.processor.raise_irql(wdm.DISPATCH_LEVEL)
    adapter.put_scatter_gather_list(pages)
    driver.processor.lower_irql(old)


def _page_entries(pages: ScatterGatherList) -> bytes:
    """Return an entry for every page of 4 KiB, whatever lies in a row."""
    return b"".join(
        (page | abi.MTT_PRESENT).to_bytes(8, "big")
        for address, length in pages.elements
        for page in range(address & -PAGE_SIZE, address + length, PAGE_SIZE)
    )


def release_locked(driver: HcaDriver, adapter: DmaAdapter, region: LockedRegion) -> None:
    """Deregister a user's memory."""
    keys = driver.regions.keys
    keys.take_from_hardware(region.key)
    keys.free_key(region.key)
    keys.free_translations(region.mtt)
    _put_pages(driver, adapter, region.pages)
    wdm.unlock_pages(region.mdl)
    wdm.free_mdl(region.mdl)


def _give_key(
    driver: HcaDriver, keys: MemoryKeys, mtt: MttRange, shift: int, start: int, length: int
) -> int:
    key = keys.allocate_key()
    entry = abi.MptEntry(
        flags=_FLAGS,
        page_size=shift - _SMALLEST_SHIFT,
        key=key,
        pd=driver.pdn,
        start=start,
        length=length,
        mtt_address=mtt.address,
        mtt_size=1 << mtt.order,
    )
    try:
        keys.give_to_hardware(entry)
    except BaseException:
        keys.free_key(key)
        raise
    return key
