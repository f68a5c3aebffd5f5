"""What a child of fork maps where its parent had memory of its own stays mapped."""

import ctypes
import gc
import mmap
import os

import pytest

from user_proc.memory.inherited_mappings import keep_in_children

LENGTH = 1 << 20
DONE, FAULT, ELSEWHERE = 0, 1, 2


def address_of(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(mapping))


def is_mapped(address: int) -> bool:
    with open("/proc/self/maps", encoding="ascii") as maps:
        ranges = [line.split(maxsplit=1)[0].split("-") for line in maps]
    return any(int(low, 16) <= address < int(high, 16) for low, high in ranges)


def use_the_hole(inherited: list[mmap.mmap], hole: int) -> int:
    """Map until something lies in the hole, drop what the parent had there, and write."""
    own: list[mmap.mmap] = []
    while hole not in [address_of(one) for one in own]:
        if len(own) == 200:
            return ELSEWHERE
        own.append(mmap.mmap(-1, LENGTH))
    del inherited[:]
    gc.collect()
    own[-1][:4] = b"mine"  # SIGSEGV if it has been unmapped
    return DONE if own[-1][:4] == b"mine" else FAULT


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_child_maps_in_the_hole_is_not_unmapped_with_what_it_inherited():
    inherited = [mmap.mmap(-1, LENGTH)]
    hole = address_of(inherited[0])
    keep_in_children(inherited[0])
    inherited[0].madvise(mmap.MADV_DONTFORK)
    child = os.fork()
    if not child:
        code = FAULT
        try:
            code = use_the_hole(inherited, hole)
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFSIGNALED(status), "the child's own memory was unmapped"
    assert os.WEXITSTATUS(status) == DONE


def test_the_parent_unmaps_it_with_its_last_reference():
    mapping = mmap.mmap(-1, LENGTH)
    start = address_of(mapping)
    keep_in_children(mapping)
    assert is_mapped(start)
    del mapping
    gc.collect()
    assert not is_mapped(start)
