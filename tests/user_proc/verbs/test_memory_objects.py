"""Protection domains, memory regions, address handles, memory by address, forks."""

import ctypes
import gc
import mmap
import struct

import pytest

from shared.verb_reasons import VerbReason
from tests.user_proc.verbs.stand_in import Refusal, Wire
from user_proc.verbs import enums as e
from user_proc.verbs import fork, mem_alloc
from user_proc.verbs.addr import AH, AHAttr, GlobalRoute
from user_proc.verbs.cq import WC
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError

BUSY = Refusal(16, VerbReason.IN_USE, 0, 1)


def test_a_domain_closes_its_children_first(context: Context, wire: Wire):
    pd = PD(context)
    kept = [MR(pd, 64, e.IBV_ACCESS_LOCAL_WRITE), AH(pd, attr=AHAttr(dlid=1))]
    pd.close()
    assert wire.names()[-3:] == ["destroy_ah", "dereg_mr", "dealloc_pd"]
    for child in (*kept, pd):
        child.close()
    assert wire.names()[-1] == "dealloc_pd"
    with pytest.raises(PyverbsUserError, match="the PD is closed"):
        _ = pd.handle
    with pytest.raises(PyverbsUserError, match="the MR is closed"):
        _ = kept[0].lkey  # type: ignore[union-attr]  # it is the region


def test_a_refused_close_leaves_the_object_open(pd: PD, wire: Wire):
    wire.answers["dealloc_pd"] = lambda request: BUSY
    with pytest.raises(PyverbsRDMAError, match=r"Failed to dealloc PD. Errno: 16") as caught:
        pd.close()
    assert caught.value.reason == "an object made on it still exists: close it first"
    assert pd.handle
    del wire.answers["dealloc_pd"]
    pd.close()


def test_creators_of_other_classes():
    with pytest.raises(PyverbsUserError, match=r"^Cannot create PD from <class 'int'>$"):
        PD(3)
    for kind in (PD, MR):
        with pytest.raises(TypeError, match="Argument 'creator' must not be None"):
            kind(None)


def test_what_goes_out_of_reach_is_destroyed_by_the_next_verb(context: Context, wire: Wire):
    pd = PD(context)
    region = MR(pd, 64)
    handles = [region.handle, pd.handle]
    del region, pd
    gc.collect()
    assert wire.names()[-1] == "reg_mr"
    other = PD(context)
    destroyed = [request.handle for name, request in wire.asked if name.startswith("de")]
    assert destroyed == handles
    other.close()


def test_parents_that_went_first_are_tried_again(context: Context, wire: Wire):
    pd, child = PD(context), PD(context)
    busy = [BUSY, None]
    wire.answers["dealloc_pd"] = lambda request: (
        busy.pop(0) if request.handle == parent and busy else None
    )
    parent = pd.handle
    context.session().forgotten.append(pd._resource)  # type: ignore[arg-type]  # it is there
    context.session().forgotten.append(child._resource)  # type: ignore[arg-type]
    pd._resource = child._resource = None
    context.query_port(1)
    assert wire.names()[-4:] == ["dealloc_pd", "dealloc_pd", "dealloc_pd", "query_port"]
    assert not context.session().forgotten


def test_a_region_has_zeroed_page_aligned_memory_of_its_own(pd: PD, wire: Wire):
    with MR(pd, 100, e.IBV_ACCESS_LOCAL_WRITE) as region:
        request = wire.last("reg_mr")
        assert region.buf % mmap.PAGESIZE == 0
        assert (request.address, request.iova, request.length) == (region.buf, region.buf, 100)
        assert region.read(100, 0) == bytes(100)
        region.write("grüß", 6)
        region.write(b"xyz", 2, 98)
        assert (region.read(6, 0), region.read(2, 98)) == ("grüß".encode(), b"xy")
        view = region.view()
        view[10] = 7
        assert (len(view), region.read(1, 10)) == (100, b"\7")
    assert view[10] == 7
    assert str(wire.last("dereg_mr").handle)


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda r: r.read(1, -1), "Invalid offset -1"),
        (lambda r: r.read(-1, 0), "The MR buffer isn't allocated or length -1 is invalid"),
        (lambda r: r.read(65, 0), "65 bytes at offset 0 reach past the region's 64"),
        (lambda r: r.write(b"abc", 3, 62), "3 bytes at offset 62 reach past"),
        (lambda r: r.write(b"abc", 4), "the data has 3 bytes, fewer than 4"),
        (lambda r: r.write(b"abc", 3, -1), "reach past"),
    ],
)
def test_reads_and_writes_out_of_bounds(pd: PD, act, text: str):  # noqa: ANN001
    with pytest.raises(PyverbsUserError, match=text):
        act(MR(pd, 64))


def test_memory_of_the_programs_own(pd: PD, wire: Wire):
    memory = (ctypes.c_ubyte * 64)()
    region = MR(pd, 64, address=ctypes.addressof(memory))
    region.view()[3] = 9
    assert memory[3] == 9
    assert region.buf == ctypes.addressof(memory)
    zero_based = MR(pd, 64, e.IBV_ACCESS_ZERO_BASED, ctypes.addressof(memory))
    assert wire.last("reg_mr").iova == 0
    zero_based.close()
    everything = MR(pd, implicit=True)
    request = wire.last("reg_mr")
    assert (request.address, request.length) == (0, (1 << 64) - 1)
    assert request.access & e.IBV_ACCESS_ON_DEMAND
    with pytest.raises(PyverbsUserError, match="isn't allocated"):
        everything.read(1, 0)


def test_huge_pages_and_too_much(pd: PD, wire: Wire):
    MR(pd, 4096, e.IBV_ACCESS_HUGETLB)
    assert wire.last("reg_mr").length == 4096
    with pytest.raises(PyverbsError, match=f"Failed to allocate MR buffer of size {1 << 60}"):
        MR(pd, 1 << 60)


def test_a_refused_registration(pd: PD, wire: Wire):
    wire.answers["reg_mr"] = lambda request: Refusal(22, VerbReason.LENGTH_ZERO)
    with pytest.raises(PyverbsRDMAError) as caught:
        MR(pd, 0, 3)
    assert str(caught.value) == (
        "Failed to register a MR. length: 0, access flags: 3. Errno: 22, Invalid argument: "
        "the length is 0"
    )


def test_rereg_changes_memory_domain_and_keys(context: Context, pd: PD, wire: Wire):
    region = MR(pd, 64)
    before = region.lkey, region.rkey
    memory, other = (ctypes.c_ubyte * 128)(), PD(context)
    flags = e.IBV_REREG_MR_CHANGE_TRANSLATION | e.IBV_REREG_MR_CHANGE_PD
    region.rereg(flags, other, ctypes.addressof(memory), 128)
    assert (region.buf, region.length) == (ctypes.addressof(memory), 128)
    assert (region.lkey, region.rkey) != before
    assert wire.last("rereg_mr").pd == other.handle
    pd.close()
    assert region.handle  # it is the other domain's child
    other.close()
    with pytest.raises(PyverbsUserError, match="the MR is closed"):
        region.rereg(0)


@pytest.mark.parametrize(
    ("reason", "detail", "name"),
    [
        (VerbReason.REREG_NO_RANGE, 1, "IBV_REREG_MR_ERR_INPUT"),
        (VerbReason.REREG_FAILED, 4, "IBV_REREG_MR_ERR_CMD"),
        (VerbReason.DEVICE_FATAL, 0, "IBV_REREG_MR_ERR_CMD"),
    ],
)
def test_a_refused_rereg_names_what_it_returned(
    pd: PD, wire: Wire, reason: VerbReason, detail: int, name: str
):
    region = MR(pd, 64)
    wire.answers["rereg_mr"] = lambda request: Refusal(22, reason, 0, detail)
    with pytest.raises(PyverbsRDMAError, match=f"^Failed to rereg MR: {name}. Errno: 22"):
        region.rereg(1)


def test_address_handles(context: Context, pd: PD, wire: Wire):
    gid = context.query_gid(1, 2)
    AH(pd, attr=AHAttr(dlid=3, is_global=1, port_num=2, gr=GlobalRoute(gid, 1, 2, 3, 4)))
    request = wire.last("create_ah")
    assert (request.dlid, request.port, request.dgid) == (3, 2, gid.raw)
    assert (request.flow_label, request.sgid_index, request.hop_limit) == (1, 2, 3)
    with pytest.raises(TypeError, match="Argument 'attr' has incorrect type"):
        AH(pd, attr=3)
    with pytest.raises(TypeError):
        AH(pd, AHAttr())  # type: ignore[call-arg]  # on purpose
    with pytest.raises(TypeError, match="Argument 'pd' must not be None"):
        AH(None, attr=AHAttr())  # type: ignore[arg-type]  # on purpose
    with pytest.raises(KeyError):
        AH(pd, wc=WC(), port_num=1)
    wire.answers["create_ah"] = lambda request: Refusal(22, VerbReason.BAD_LID, 0, 9)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to create AH. Errno: 22"):
        AH(pd, attr=AHAttr())


def test_an_address_handle_that_answers_a_datagram(context: Context, pd: PD, wire: Wire):
    mine, theirs = context.query_gid(1, 2).raw, bytes(range(16))
    header = struct.pack(">IHBB16s16s", 6 << 28 | 5 << 20 | 77, 0, 27, 1, theirs, mine)
    buffer = ctypes.create_string_buffer(header, 40)
    wc = WC(slid=9, sl=3, dlid_path_bits=2, wc_flags=e.IBV_WC_GRH)
    AH(pd, wc=wc, grh=ctypes.addressof(buffer), port_num=1)
    request = wire.last("create_ah")
    assert (request.dlid, request.sl, request.src_path_bits, request.port) == (9, 3, 2, 1)
    assert (request.dgid, request.sgid_index) == (theirs, 2)
    assert (request.flow_label, request.traffic_class) == (77, 5)
    AH(pd, wc=WC(slid=4), grh=0, port_num=2)
    assert (wire.last("create_ah").is_global, wire.last("create_ah").dlid) == (0, 4)


def test_memory_by_address():
    address = mem_alloc.posix_memalign(64, 32)
    assert (address % 32, mem_alloc.read(address, 64)) == (0, bytes(64))
    mem_alloc.write(address, "abc", 3)
    mem_alloc.write(address, b"xyz", 2, 3)
    assert mem_alloc.read(address, 5) == b"abcxy"
    mem_alloc.writebe32(address, 0x01020304, 4)
    mem_alloc.writebe64(address, 5, 3)
    assert mem_alloc.read(address, 4, 16) == bytes([1, 2, 3, 4])
    assert mem_alloc.read32(address, 4) == 0x04030201
    assert mem_alloc.read64(address, 3) == 5 << 56
    with pytest.raises(ValueError, match="fewer than 9"):
        mem_alloc.write(address, b"abc", 9)
    mem_alloc.free(address)
    mem_alloc.free(mem_alloc.malloc(8))
    page = mem_alloc.mmap(length=4096)
    mem_alloc.madvise(page, 4096)
    mem_alloc.munmap(page, 4096)
    with pytest.raises(PyverbsRDMAError, match="Failed to madvise") as caught:
        mem_alloc.madvise(1, 4096)
    assert caught.value.error_code == 22
    for act in (
        lambda: mem_alloc.mmap(length=0),
        lambda: mem_alloc.munmap(1, 4096),
        lambda: mem_alloc.posix_memalign(8, 3),
        lambda: mem_alloc.malloc(1 << 62),
    ):
        with pytest.raises(MemoryError):
            act()


def test_fork_support_is_asked_for_before_memory(monkeypatch: pytest.MonkeyPatch, pd: PD):
    monkeypatch.setattr(fork, "_enabled", False)
    monkeypatch.setattr(fork, "_too_late", False)
    assert fork.is_fork_initialized() == e.IBV_FORK_DISABLED
    fork.fork_init()
    assert fork.is_fork_initialized() == e.IBV_FORK_ENABLED
    MR(pd, 64)
    fork.fork_init()
    monkeypatch.setattr(fork, "_enabled", False)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to init fork support. Errno: 22"):
        fork.fork_init()
