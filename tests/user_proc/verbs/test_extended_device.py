"""The extended calls on the whole machine: in this process, and across processes."""

import errno
import io
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.verb_codes import IOCTL_EXPORT_CONTEXT
from shared.verb_messages import ImportByDescriptor, Object
from tests.user_proc.verbs import extended_program as program
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ, CQEX, CqInitAttrEx
from user_proc.verbs.device import DM, AllocDmAttr, Context
from user_proc.verbs.mr import DMMR, MR, MREx
from user_proc.verbs.pd import PD, ParentDomain, ParentDomainContext, ParentDomainInitAttr
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.qp import QP, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.verb_session import VerbRefusal

ROOT = Path(__file__).parents[3]
MASK = e.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | e.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine(KernelSettings(verifier=True, seed=5), in_process=True)
    made.start_hca()
    yield made
    assert made.inspect()["server"]["sessions"] == []
    made.close()


@pytest.fixture
def process(machine: Machine) -> Iterator[UserProcess]:
    with UserProcess.in_process(machine.connect_in_process("verbs")) as connected:
        yield connected


@pytest.fixture
def context(process: UserProcess) -> Iterator[Context]:
    with Context(name="mthca0", process=process) as opened:
        yield opened


@pytest.mark.parametrize("part", ["batches", "device_memory", "own_queue_memory"])
def test_a_part_of_the_program(context: Context, part: str):
    getattr(program, part)(context)


def test_what_the_device_says_of_itself(context: Context):
    attr = context.query_device_ex()
    assert (attr.hca_core_clock, attr.completion_timestamp_mask) == (1_000_000, (1 << 64) - 1)
    assert attr.device_cap_flags_ex == attr.orig_attr.device_cap_flags
    assert (attr.max_dm_size, attr.phys_port_cnt_ex) == (256 << 10, 2)
    assert context.query_rt_values_ex(0) == (0, 0)
    assert context.num_comp_vectors == 1
    for make in (
        lambda: CQ(context, 4, comp_vector=1),
        lambda: CQ(context, 4, comp_vector=-1),
        lambda: CQEX(context, CqInitAttrEx(4, comp_vector=1)),
    ):
        with pytest.raises(PyverbsRDMAError, match="comp_vector") as caught:
            make()
        assert caught.value.error_code == errno.EINVAL


INIT_REFUSED = [
    *(("create_flags", flag, errno.EOPNOTSUPP) for flag in (256, 512, 1024, 2048, 1 << 20)),
    ("create_flags", 2, errno.EINVAL),  # of a UD queue pair alone
    *(("send_ops_flags", 1 << bit, errno.EOPNOTSUPP) for bit in (10, 11, 12, 13, 63)),
    ("max_tso_header", 64, errno.EOPNOTSUPP),
]
BITS = {
    "create_flags": e.IBV_QP_INIT_ATTR_CREATE_FLAGS,
    "send_ops_flags": e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    "max_tso_header": e.IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
}


@pytest.mark.parametrize(("name", "value", "number"), INIT_REFUSED)
def test_queue_pairs_this_device_does_not_make(
    context: Context, name: str, value: int, number: int
):
    cq = CQ(context, 4)
    attr = QPInitAttrEx(
        e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 1), pd=PD(context),
        comp_mask=e.IBV_QP_INIT_ATTR_PD | BITS[name],
    )  # fmt: skip
    setattr(attr, name, value)
    with pytest.raises(PyverbsRDMAError, match="Failed to create extended QP") as caught:
        QP(context, attr)
    assert caught.value.error_code == number
    attr.comp_mask = e.IBV_QP_INIT_ATTR_PD  # what the mask does not name does not count
    QP(context, attr).close()


def test_queue_memory_that_no_queue_can_lie_in(context: Context):
    pd, freed = PD(context), []
    region = MR(pd, 8192, e.IBV_ACCESS_LOCAL_WRITE)
    for answer, number in (
        (0, errno.ENOMEM),
        (None, errno.ENOMEM),
        (id(context) & ~4095, errno.EINVAL),
        (region.buf + 8, errno.EINVAL),
        (region.buf + (1 << 40), errno.EINVAL),
    ):
        own = ParentDomainContext(pd, lambda *_, a=answer: a, lambda *a: freed.append(a[2]))
        domain = ParentDomain(context, ParentDomainInitAttr(pd, own, MASK))
        attr = CqInitAttrEx(4, comp_mask=e.IBV_CQ_INIT_ATTR_MASK_PD, parent_domain=domain)
        with pytest.raises(PyverbsRDMAError, match="parent domain's allocator gave") as caught:
            CQEX(context, attr)
        assert caught.value.error_code == number
        assert len(freed) == int(number == errno.EINVAL)
        freed.clear()
    default = ParentDomainContext(pd, lambda *_: e._IBV_ALLOCATOR_USE_DEFAULT, None)
    domain = ParentDomain(context, ParentDomainInitAttr(pd, default, MASK))
    CQEX(context, CqInitAttrEx(4, comp_mask=2, parent_domain=domain)).close()
    cq = CQ(context, 4)
    qp = QP(domain, QPInitAttr(e.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(1, 1)))
    assert domain.handle == pd.handle
    pd.close()  # the domain on it first, and what is on that
    for closed in (qp, domain):
        with pytest.raises(PyverbsUserError, match="closed"):
            closed.handle  # noqa: B018


def test_parent_domains_that_cannot_be(context: Context, process: UserProcess):
    pd = PD(context)
    for mask in (1, 2, 3):
        with pytest.raises(PyverbsUserError, match="pd_context is None"):
            ParentDomainInitAttr(pd, None, mask)
    with pytest.raises(PyverbsRDMAError, match="Failed to allocate Parent Domain") as caught:
        ParentDomain(context, ParentDomainInitAttr(pd, None, 4))
    assert caught.value.error_code == errno.EOPNOTSUPP
    with Context(name="mthca0", process=process) as other:
        with pytest.raises(PyverbsRDMAError, match="another context's") as caught:
            ParentDomain(other, ParentDomainInitAttr(pd))
        assert caught.value.error_code == errno.EINVAL
    with pytest.raises(TypeError, match=r"expected pyverbs.pd.PD, got Context"):
        ParentDomainInitAttr(context)


def test_regions_by_the_extended_call(context: Context):
    pd = PD(context)
    for options in ({"fd": 0}, {"dmah": 1}, {"buf": 1}):
        with pytest.raises(PyverbsRDMAError, match="using extended API") as caught:
            MREx(pd, 64, **options)
        assert caught.value.error_code == errno.EOPNOTSUPP
    with pytest.raises(PyverbsRDMAError, match="differ within a page"):
        MREx(pd, 64, 1, iova=5)
    with pytest.raises(PyverbsRDMAError, match="using extended API"):
        MREx(pd, 0)
    assert MREx(pd, 64, 1).buf


def test_device_memory_is_bounded_in_the_library_and_in_the_kernel(
    context: Context, machine: Machine
):
    dm, pd = DM(context, AllocDmAttr(100)), PD(context)
    region = DMMR(pd, 50, program.RIGHTS | e.IBV_ACCESS_ZERO_BASED, dm, 50)
    for act in (
        lambda: dm.copy_to_dm(0, b"x", 2),
        lambda: dm.copy_to_dm(100, b"x", 1),
        lambda: dm.copy_to_dm(-1, b"x", 1),
        lambda: dm.copy_from_dm(99, 2),
        lambda: dm.copy_from_dm(0, -1),
        lambda: region.write(b"12", 2, 49),
        lambda: region.read(1, 50),
        region.view,
    ):
        with pytest.raises(PyverbsUserError):
            act()
    region.write("é", 2, 48)
    assert dm.copy_from_dm(98, 2) == "é".encode()
    dm._length = 1 << 20  # a library that does not look
    for act in (
        lambda: dm.copy_to_dm(90, bytes(20), 20),
        lambda: dm.copy_from_dm(99, 5),
        lambda: dm.copy_from_dm((1 << 20) - 1, 1),
    ):
        with pytest.raises(PyverbsRDMAError, match="the memory at 100") as caught:
            act()
        assert caught.value.error_code == errno.EINVAL
    pd.close()
    dm.close()
    with pytest.raises(PyverbsUserError, match="the DM is closed"):
        dm.copy_from_dm(0, 1)


def test_what_ends_with_a_context_is_free_again(process: UserProcess, machine: Machine):
    with Context(name="mthca0", process=process) as first:
        dm = DM(first, AllocDmAttr(first.query_device_ex().max_dm_size))
        DMMR(PD(first), 64, program.RIGHTS | e.IBV_ACCESS_ZERO_BASED, dm, 0)
        first.cmd_fd  # noqa: B018 - exported
    with Context(name="mthca0", process=process) as second:
        DM(second, AllocDmAttr(second.query_device_ex().max_dm_size)).close()


def test_a_domain_is_imported_by_another_session(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    with UserProcess.in_process(machine.connect_in_process("one")) as one:
        exporter = Context(name="mthca0", process=one)
        pd = PD(exporter)
        mr = MR(pd, 4096, program.RIGHTS)
        mr.write(b"of another!", 11)
        with UserProcess.in_process(machine.connect_in_process("two")) as two:
            dm = DM(exporter, AllocDmAttr(64))
            lines = io.StringIO(f"{mr.buf}\n{mr.handle}\n{dm.handle}\n")
            monkeypatch.setattr(sys, "stdin", lines)
            program.use_domain_of(exporter.cmd_fd, pd.handle, process=two)
            with Context(cmd_fd=exporter.cmd_fd, process=two) as importer:
                shared = PD(importer, handle=pd.handle)
                exporter.close()  # the domain lives on in the other context
                MR(shared, 64, 1)
                with pytest.raises(PyverbsRDMAError, match="Failed to import PD") as caught:
                    PD(importer, handle=1)
                assert caught.value.error_code == errno.EINVAL
                with pytest.raises(PyverbsUserError, match="was not imported"):
                    PD(importer).unimport()
                shared.close()


def test_descriptors_that_name_no_context(context: Context, process: UserProcess, tmp_path: Path):
    path = tmp_path / "file"
    for text, number in (("", 9), ("[]", 9), ('{"kernel": 1, "device": "mthca0"}', 9)):
        path.write_text(text)
        with path.open() as file, pytest.raises(PyverbsRDMAError, match="to import device") as bad:
            Context(cmd_fd=file.fileno(), process=process)
        assert bad.value.error_code == number
    with pytest.raises(PyverbsRDMAError, match="Failed to import device"):
        Context(cmd_fd=-1, process=process)
    path.write_text('{"kernel": "in-process", "device": "mthca0"}')  # says so, but is not
    with path.open() as file, pytest.raises(PyverbsRDMAError, match="names no context") as bad:
        Context(cmd_fd=file.fileno(), process=process)
    assert bad.value.error_code == errno.EBADF
    assert context.cmd_fd == context.cmd_fd


def test_a_context_is_exported_once_and_a_descriptor_names_one(
    context: Context, process: UserProcess
):
    own, session = context.cmd_fd, context.session()
    for name, descriptor in (("another", os.memfd_create("another")), ("the same", own)):
        with pytest.raises(VerbRefusal) as caught:
            session.call(Object, IOCTL_EXPORT_CONTEXT, ImportByDescriptor(descriptor))
        assert (caught.value.errno, name) == (errno.EEXIST, name)
        if descriptor != own:
            os.close(descriptor)
    with Context(name="mthca0", process=process) as other:
        with pytest.raises(VerbRefusal) as caught:
            other.session().do(IOCTL_EXPORT_CONTEXT, ImportByDescriptor(own))
        assert caught.value.errno == errno.EEXIST
        assert other.cmd_fd != own


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    with start_kernel(f"extended-{uuid.uuid4().hex[:8]}") as started:
        yield started
        assert started.running, started.log.read_text()


def started(kernel: StartedKernel, *arguments: str, text: str = "", fds: tuple[int, ...] = ()):
    return subprocess.run(
        [sys.executable, "-P", str(Path(program.__file__)), *arguments],
        env=os.environ | {"SOFTHCA_NAME": kernel.name, "PYTHONPATH": str(ROOT)},
        input=text, capture_output=True, text=True, timeout=50, check=False, pass_fds=fds,
    )  # fmt: skip


@pytest.mark.processes
def test_the_program_across_processes(kernel: StartedKernel):
    done = started(kernel)
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # beside threads, on purpose
def test_a_forked_child_uses_nothing_it_inherited_but_may_import(kernel: StartedKernel):
    with Context(name="mthca0", kernel=kernel.name) as context:
        pd, cq, dm = PD(context), CQEX(context, CqInitAttrEx(16)), DM(context, AllocDmAttr(64))
        qp, descriptor = program.connected(context, pd, cq), context.cmd_fd
        uses = (
            lambda: cq.start_poll(None),
            qp.wr_start,
            lambda: dm.copy_from_dm(0, 8),
            lambda: ParentDomain(context, ParentDomainInitAttr(pd)),
            lambda: PD(context, handle=pd.handle),
            context.query_rt_values_ex,
            cq.close,
            dm.close,
        )
        child = os.fork()
        if not child:
            refused = 0
            try:
                for use in uses:
                    try:
                        use()
                    except PyverbsUserError:
                        refused += 1
                with Context(cmd_fd=descriptor) as own:
                    PD(own, handle=pd._resource.handle).unimport()
            finally:
                os._exit(len(uses) - refused if sys.exc_info()[0] is None else 99)
        assert os.waitpid(child, 0)[1] == 0
        program.batches(context)


@pytest.mark.processes
def test_a_domain_is_imported_by_another_process(kernel: StartedKernel):
    with Context(name="mthca0", kernel=kernel.name) as exporter:
        pd = PD(exporter)
        mr = MR(pd, 4096, program.RIGHTS)
        mr.write(b"of another!", 11)
        dm = DM(exporter, AllocDmAttr(64))
        dm.copy_to_dm(0, b"dm's", 4)
        descriptor = exporter.cmd_fd
        done = started(
            kernel, str(descriptor), str(pd.handle),
            text=f"{mr.buf}\n{mr.handle}\n{dm.handle}\n", fds=(descriptor,),
        )  # fmt: skip
        assert dm.copy_from_dm(0, 4) == b"back"
    assert (done.stdout, done.stderr) == ("of another! dm's\ndone\n", "")
