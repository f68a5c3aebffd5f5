"""What changes while programs work: rights of regions, overrun queues, groups, ports and tables."""

import threading
import uuid
from collections.abc import Iterator

import pytest

from kernel_proc.driver.local_link import LocalLink
from kernel_proc.hca.hca_device import HcaDevice
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from tests.user_proc.verbs.claims import (
    ACCESS_ERR,
    GROUP,
    GROUP_LID,
    OK,
    REMOTE,
    RIGHTS,
    Claims,
    multicast_address,
)
from user_proc.faults.fault_control import clear_faults, set_fault
from user_proc.faults.fault_values import parse_fault
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQEX, CqInitAttrEx
from user_proc.verbs.device import Context
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.wr import SGE, SendWR

NO_WRITES = int(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ)
CHANGES = 60


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine(KernelSettings(verifier=True, seed=5), in_process=True)
    made.start_hca()
    yield made
    made.close()


@pytest.fixture
def here(machine: Machine) -> Iterator[Claims]:
    assert machine.hca is not None
    assert isinstance(machine.hca.link, LocalLink)
    assert isinstance(machine.hca.link.device, HcaDevice)
    with (
        UserProcess.in_process(machine.connect_in_process("changes")) as process,
        Context(name="mthca0", process=process) as context,
    ):
        yield Claims(context, lambda port: lambda: None, machine.hca.link.device.tables.ports)


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    with start_kernel(f"changes-{uuid.uuid4().hex[:8]}") as started:
        yield started
        assert started.running, started.log.read_text()


# Overrun


@pytest.mark.parametrize("ignores", [True, False])
def test_a_queue_that_overruns(here: Claims, ignores: bool):
    flags = int(e.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) if ignores else 0
    mask = int(e.IBV_CQ_INIT_ATTR_MASK_FLAGS)
    cq = CQEX(here.context, CqInitAttrEx(1, flags=flags, comp_mask=mask))
    qp = QP(here.pd, QPInitAttr(int(e.IBV_QPT_RC), scq=cq, rcq=here.cq, cap=QPCap(8, 8, 1, 1)))
    qp.to_rts(here.attributes(qp.qp_num))
    for _ in range(8):
        here.receive(qp)
    for _ in range(4):
        qp.post_send(here.send(qp))
    if ignores:  # the messages come all the same, and the queue pair goes on
        assert here.statuses(4) == [OK] * 4
        assert qp.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_RTS
        return
    here.events(e.IBV_EVENT_CQ_ERR)
    assert qp.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_ERR


# Multicast


@pytest.mark.parametrize(
    ("attached", "blocks", "copies"), [(True, False, 1), (True, True, 0), (False, False, 0)]
)
def test_who_sends_to_a_group_it_is_in_gets_a_copy(
    here: Claims, attached: bool, blocks: bool, copies: int
):
    attr = QPInitAttrEx(
        e.IBV_QPT_UD, scq=here.cq, rcq=here.cq, cap=QPCap(8, 8, 1, 1), pd=here.pd,
        comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_CREATE_FLAGS,
        create_flags=int(e.IBV_QP_CREATE_BLOCK_SELF_MCAST_LB) if blocks else 0,
    )  # fmt: skip
    sender, member = QP(here.context, attr), here.datagrams()
    ready = QPAttr(port_num=1)
    ready.qkey = 0x1234
    sender.to_rts(ready)
    members = [member, sender] if attached else [member]
    for qp in members:
        qp.attach_mcast(GROUP, GROUP_LID)
        qp.attach_mcast(GROUP, GROUP_LID)  # once more is as once
    for qp in (sender, member):
        for _ in range(3):
            here.receive(qp)
    for _ in range(2):
        here.datagram(sender, 0xFFFFFF, multicast_address(here))
    found = here.completions(2 + 2 + 2 * copies)
    by_queue = [wc.qp_num for wc in found if wc.wr_id == 7]
    assert (by_queue.count(member.qp_num), by_queue.count(sender.qp_num)) == (2, 2 * copies)
    assert {wc.byte_len for wc in found if wc.wr_id == 7} == {40 + 64}
    assert all(wc.wc_flags & e.IBV_WC_GRH for wc in found if wc.wr_id == 7)
    assert here.cq.poll(1)[0] == 0
    for qp in members:
        qp.detach_mcast(GROUP, GROUP_LID)


# Ports


def test_changes_of_a_port_are_told_to_every_process(here: Claims, machine: Machine):
    assert here.ports is not None
    port = here.ports[0]
    with (
        UserProcess.in_process(machine.connect_in_process("another")) as process,
        Context(name="mthca0", process=process) as other,
    ):
        another = Claims(other, here.down)
        before = here.context.query_port(1)
        for change, kind in (
            (lambda: port.set_pkeys(3, [0x8111]), e.IBV_EVENT_PKEY_CHANGE),
            (lambda: port.set_pkeys(3, [0]), e.IBV_EVENT_PKEY_CHANGE),
            (lambda: port.set_guids(3, [0x55]), e.IBV_EVENT_GID_CHANGE),
            (lambda: port.set_guids(3, [0]), e.IBV_EVENT_GID_CHANGE),
            (lambda: port.set_lid(99, before.sm_lid, 0), e.IBV_EVENT_LID_CHANGE),
            (lambda: port.set_lid(before.lid, before.sm_lid, 0), e.IBV_EVENT_LID_CHANGE),
            (port.ask_to_reregister, e.IBV_EVENT_CLIENT_REREGISTER),
        ):
            change()
            for claims in (here, another):
                claims.events(kind)


@pytest.mark.processes
def test_a_port_that_goes_down_and_comes_up_is_told_to_every_process(kernel: StartedKernel):
    with (
        UserProcess.connect(kernel.name) as first,
        UserProcess.connect(kernel.name) as second,
        Context(name="mthca0", process=first) as one,
        Context(name="mthca0", process=second) as other,
    ):
        both = [Claims(context, lambda port: lambda: None) for context in (one, other)]
        set_fault(first, parse_fault("port-down", {"port": 2, "lasts": "20s"}))
        for claims in both:
            claims.events(e.IBV_EVENT_PORT_ERR)
            assert claims.context.query_port(2).state == e.IBV_PORT_DOWN
        clear_faults(first)
        for claims in both:
            claims.events(e.IBV_EVENT_PORT_ACTIVE)


# Regions


@pytest.mark.processes
def test_a_region_whose_rights_change_while_another_session_writes(kernel: StartedKernel):
    """Each write has the old rights or the new ones, and each has exactly one completion."""
    with (
        UserProcess.connect(kernel.name) as owner_process,
        UserProcess.connect(kernel.name) as writer_process,
        Context(name="mthca0", process=owner_process) as owner_context,
        Context(name="mthca0", process=writer_process) as writer_context,
    ):
        owner, writer = (
            Claims(context, lambda port: lambda: None)
            for context in (owner_context, writer_context)
        )
        target, sender = owner.queue_pair(e.IBV_QPT_RC), writer.queue_pair(e.IBV_QPT_RC)
        done, ended = threading.Event(), threading.Event()

        def change() -> None:
            try:
                for number in range(CHANGES):
                    rights = NO_WRITES if number % 2 else RIGHTS
                    owner.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=rights)
                    for _ in range(2):  # the first may have begun before the change
                        ended.clear()
                        assert ended.wait(10)
            finally:
                done.set()

        changing = threading.Thread(target=change)
        join(owner, target, writer, sender)
        changing.start()
        ends = {OK: 0, ACCESS_ERR: 0}
        while not done.is_set():
            ends[write(owner, target, writer, sender)] += 1
            ended.set()
        changing.join()
        assert min(ends.values()) > 0, ends
        assert write(owner, target, writer, sender) == ACCESS_ERR  # NO_WRITES is the last
        owner.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=RIGHTS | REMOTE)
        writer.mr.write(b"at last", 7)
        assert write(owner, target, writer, sender) == OK
        assert owner.mr.read(7, 4096) == b"at last"
        assert writer.cq.poll(1)[0] == 0


def join(owner: Claims, target: QP, writer: Claims, sender: QP) -> None:
    """Connect the two, anew if they have failed."""
    for qp in (target, sender):
        qp.modify(QPAttr(qp_state=int(e.IBV_QPS_RESET)), e.IBV_QP_STATE)
    target.to_rts(owner.attributes(sender.qp_num))
    sender.to_rts(writer.attributes(target.qp_num))


def write(owner: Claims, target: QP, writer: Claims, sender: QP) -> int:
    """Write once into the owner's region, and give how it ended."""
    request = SendWR(5, num_sge=1, sg=[SGE(writer.mr.buf, 64, writer.mr.lkey)])
    request.opcode = int(e.IBV_WR_RDMA_WRITE)
    request.set_wr_rdma(owner.mr.rkey, owner.mr.buf + 4096)
    sender.post_send(request)
    (status,) = writer.statuses(1)
    if status != OK:
        join(owner, target, writer, sender)
    return status
