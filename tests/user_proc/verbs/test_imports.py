"""Regions and device memory imported by their handles: what importers get, and what they do not."""

import errno
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.verb_codes import IOCTL_IMPORT_CONTEXT
from shared.verb_messages import ImportByDescriptor
from tests.user_proc.verbs import extended_program as program
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQEX, CqInitAttrEx
from user_proc.verbs.device import DM, AllocDmAttr, Context
from user_proc.verbs.mr import DMMR, MR, MW, MREx
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.wr import SGE

ZERO_BASED = program.RIGHTS | e.IBV_ACCESS_ZERO_BASED

#: Its own responder goes into the error state first, which flushes the request.
REFUSED = e.IBV_WC_WR_FLUSH_ERR


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine(KernelSettings(verifier=True, seed=5), in_process=True)
    made.start_hca()
    yield made
    assert made.inspect()["server"]["sessions"] == []
    made.close()


class Two(NamedTuple):
    """A context of one session, which another imports; the machine's memory is that of both."""

    machine: Machine
    exporter: Context
    pd: PD
    importer: Context
    shared: PD
    third: Context

    def used(self) -> int:
        """Bytes of device memory that are taken."""
        life: Any = self.machine.inspect()["hca"]["driver"]["hca"]
        return int(life["device_memory"]["used"])


@pytest.fixture
def two(machine: Machine) -> Iterator[Two]:
    sessions = [machine.connect_in_process(name) for name in ("one", "two", "three")]
    one, other, third = (UserProcess.in_process(session) for session in sessions)
    with one, other, third, Context(name="mthca0", process=one) as exporter:
        pd = PD(exporter)
        with (
            Context(cmd_fd=exporter.cmd_fd, process=other) as importer,
            Context(name="mthca0", process=third) as stranger,
        ):
            shared = PD(importer, handle=pd.handle)
            yield Two(machine, exporter, pd, importer, shared, stranger)


def wrote(two: Two, local: SGE, address: int, key: int) -> int:
    """Write by an importer's queue pair; the status."""
    cq = CQEX(two.importer, CqInitAttrEx(8, wc_flags=program.STAMPS))
    qp = program.connected(two.importer, two.shared, cq)
    qp.wr_start()
    qp.wr_flags = e.IBV_SEND_SIGNALED
    qp.wr_rdma_write(key, address)
    qp.wr_set_sge(local)
    qp.wr_complete()
    while cq.start_poll(None):
        two.machine.processor.run_thread(lambda: None)
    status = cq.status
    cq.end_poll()
    qp.close()
    cq.close()
    return status


def test_the_keys_of_an_imported_region_are_those_of_the_region(two: Two):
    mr = MR(two.pd, 4096, program.RIGHTS)
    mr.write(b"of another!", 11)
    for kind in (MR, MREx):
        imported = kind(two.shared, handle=mr.handle)
        assert (imported.lkey, imported.rkey, imported.length) == (mr.lkey, mr.rkey, 4096)
        assert imported.buf == 0
        for use, arguments in ((imported.read, (1, 0)), (imported.write, (b"x", 1))):
            with pytest.raises(PyverbsUserError, match="isn't allocated"):
                use(*arguments)
        with pytest.raises(PyverbsUserError, match="no address"):
            imported.view()
        with pytest.raises(PyverbsRDMAError, match="who registered it") as caught:
            imported.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=1)
        assert caught.value.error_code == errno.EINVAL
        own = MR(two.shared, 64, program.RIGHTS)
        own.write(b"to another!", 11)
        local = SGE(own.buf, 11, own.lkey)
        assert wrote(two, local, mr.buf + 100, imported.rkey) == e.IBV_WC_SUCCESS
        assert mr.read(11, 100) == b"to another!"
        imported.unimport()
        with pytest.raises(PyverbsUserError, match="closed"):
            imported.rkey  # noqa: B018
    assert wrote(two, SGE(mr.buf, 8, mr.lkey), mr.buf, mr.rkey) == e.IBV_WC_SUCCESS


def test_an_importer_keeps_nobody_from_deregistering(two: Two):
    mr = MR(two.pd, 4096, program.RIGHTS)
    imported = MR(two.shared, handle=mr.handle)
    own = MR(two.shared, 64, program.RIGHTS)
    address, handle = mr.buf, mr.handle
    mr.close()
    status = wrote(two, SGE(own.buf, 8, own.lkey), address, imported.rkey)
    assert status == REFUSED
    with pytest.raises(PyverbsRDMAError, match="Failed to import MR") as caught:
        MR(two.shared, handle=handle)
    assert caught.value.error_code == errno.EINVAL
    imported.close()


def test_a_region_follows_its_owner(two: Two):
    """What the owner does with it is true of its keys, whoever has imported it."""
    mr = MR(two.pd, 4096, program.RIGHTS)
    imported = MR(two.shared, handle=mr.handle)
    own = MR(two.shared, 64, program.RIGHTS)
    mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=e.IBV_ACCESS_LOCAL_WRITE)
    status = wrote(two, SGE(own.buf, 8, own.lkey), mr.buf, imported.rkey)
    assert status == REFUSED
    mr.rereg(e.IBV_REREG_MR_CHANGE_PD, pd=PD(two.exporter))
    with pytest.raises(PyverbsRDMAError, match="not of this protection domain"):
        MR(two.shared, handle=mr.handle)


def test_a_region_is_imported_into_its_own_domain(two: Two):
    mr = MR(two.pd, 4096, program.RIGHTS)
    with pytest.raises(PyverbsRDMAError, match="not of this protection domain") as caught:
        MR(PD(two.importer), handle=mr.handle)
    assert caught.value.error_code == errno.EINVAL
    assert MR(two.pd, handle=mr.handle).rkey == mr.rkey  # one's own, too
    held = MR(two.shared, handle=mr.handle)
    two.shared.close()  # with it
    with pytest.raises(PyverbsUserError, match="closed"):
        held.lkey  # noqa: B018


def test_device_memory_lives_as_long_as_anybody_has_it(two: Two):
    dm = DM(two.exporter, AllocDmAttr(5000))
    dm.copy_to_dm(4090, b"across a page", 13)
    imported = DM(two.importer, handle=dm.handle)
    assert imported.copy_from_dm(4090, 13) == b"across a page"
    with pytest.raises(PyverbsUserError, match="reach past"):
        imported.copy_from_dm(4990, 11)
    imported.copy_to_dm(0, b"back", 4)
    assert dm.copy_from_dm(0, 4) == b"back"
    region = DMMR(two.shared, 100, ZERO_BASED, imported, 0)
    own = MR(two.shared, 64, program.RIGHTS)
    own.write(b"by its key", 10)
    assert wrote(two, SGE(own.buf, 10, own.lkey), 50, region.rkey) == e.IBV_WC_SUCCESS
    assert dm.copy_from_dm(50, 10) == b"by its key"
    handle = dm.handle
    dm.close()  # is not busy: the region is over the importer's opening
    assert two.used() == 8192
    with pytest.raises(PyverbsRDMAError, match="Failed to import DM") as caught:
        DM(two.importer, handle=handle)
    assert caught.value.error_code == errno.EINVAL
    assert region.read(10, 50) == b"by its key"
    imported.unimport()  # with its region
    assert two.used() == 0


def test_a_region_over_device_memory_is_imported_by_its_keys(two: Two):
    dm = DM(two.exporter, AllocDmAttr(4096))
    region = DMMR(two.pd, 4096, ZERO_BASED, dm, 0)
    imported = MR(two.shared, handle=region.handle)
    own = MR(two.shared, 64, program.RIGHTS)
    own.write(b"into the device", 15)
    assert wrote(two, SGE(own.buf, 15, own.lkey), 7, imported.rkey) == e.IBV_WC_SUCCESS
    assert dm.copy_from_dm(7, 15) == b"into the device"


def test_the_end_of_either_side_leaves_nothing(two: Two):
    dm, mr = DM(two.exporter, AllocDmAttr(64)), MR(two.pd, 64, program.RIGHTS)
    imported, region = DM(two.importer, handle=dm.handle), MR(two.shared, handle=mr.handle)
    imported.copy_to_dm(0, b"stays", 5)
    two.exporter.close()
    assert imported.copy_from_dm(0, 5) == b"stays"
    assert region.length == 64  # of keys that name nothing any more
    two.importer.close()
    assert two.used() == 0


def test_only_what_the_descriptor_is_of_can_be_imported(two: Two):
    """Handles are small numbers: all near are tried, and none of the third's is reached."""
    for _ in range(100):
        PD(two.third).close()  # its handles are none of the exporter's
    pd = PD(two.third)
    theirs = MR(pd, 64, program.RIGHTS), DM(two.third, AllocDmAttr(64))
    mine = MR(two.pd, 64, program.RIGHTS)
    reached = []
    for handle in (*range(1, 2 * theirs[1].handle), 0xFFFF_FFFF):
        for attempt in (lambda h: MR(two.shared, handle=h), lambda h: DM(two.importer, handle=h)):
            try:
                reached.append(attempt(handle).handle and handle)
            except PyverbsRDMAError as error:
                assert error.error_code == errno.EINVAL  # noqa: PT017 - the rest are reached
    assert reached == [mine.handle]
    # Nor does the third reach what it has no descriptor of.
    own = PD(two.third)
    for attempt in (lambda: MR(own, handle=mine.handle), lambda: PD(two.third, handle=mine.handle)):
        with pytest.raises(PyverbsRDMAError, match="Failed to import"):
            attempt()


def test_with_two_rights_both_contexts_are_looked_at(two: Two):
    session = two.importer.session()
    session.do(IOCTL_IMPORT_CONTEXT, ImportByDescriptor(two.third.cmd_fd))
    for _ in range(50):
        PD(two.third).close()
    dm, far = DM(two.third, AllocDmAttr(64)), DM(two.exporter, AllocDmAttr(128))
    assert DM(two.importer, handle=dm.handle).copy_from_dm(0, 64) == bytes(64)
    assert DM(two.importer, handle=far.handle).copy_from_dm(0, 128) == bytes(128)


def test_what_was_not_imported_is_not_dropped(two: Two):
    dm, mr = DM(two.exporter, AllocDmAttr(64)), MR(two.pd, 64, program.RIGHTS)
    for one in (dm, mr, DMMR(two.pd, 64, ZERO_BASED, dm, 0)):
        with pytest.raises(PyverbsUserError, match="was not imported"):
            one.unimport()
    with pytest.raises(PyverbsRDMAError, match="Failed to import MR") as caught:
        MR(two.pd, handle=MW(two.pd, 1).handle)  # names a window
    assert caught.value.error_code == errno.EINVAL
