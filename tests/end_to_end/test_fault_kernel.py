"""Faults of the kernel, its memory and its door, in one process: what a program sees of them.

docs/faults.md is made of the names of these tests; `test_faults_page.py` compares.
"""

import errno

import pytest

from kernel_proc.memory.dma_adapter import DeviceDescription, DmaAdapter, get_dma_adapter
from kernel_proc.memory.dma_channel import DEALLOCATE_OBJECT
from kernel_proc.scheduling.dispatcher import Deadlock
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_QUOTA_EXCEEDED,
    STATUS_SUCCESS,
)
from tests.end_to_end.fault_box import (
    NOOP,
    OK,
    Box,
    box,
    shared_box,
)
from tests.end_to_end.fault_scene import LENGTH, errno_of
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.device import Context
from user_proc.verbs.dm import DM, AllocDmAttr
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from user_proc.verbs.qp import QPAttr

__all__ = ["box", "shared_box"]


def test_kernel_slow(box: Box):
    with box.context() as context:
        box.set_for_user("kernel-slow", time="80ms", lasts="500s")
        assert box.seconds(lambda: [context.query_port(1) for _ in range(5)]) >= 0.4
        assert box.seconds(box.the_other_goes_on) < 0.08
        box.clear()
        assert box.seconds(lambda: context.query_port(1)) < 0.08


def test_kernel_paused(box: Box):
    with box.pair() as pair:
        assert box.seconds(lambda: box.set("kernel-paused", lasts="2s")) <= 2
        assert box.seconds(lambda: pair.context.query_port(1)) <= 2
        assert box.hits() == []


# Memory


def test_hca_memory_fails(box: Box):
    with box.context() as context:
        box.set("hca-memory-fails")
        assert errno_of(lambda: DM(context, AllocDmAttr(LENGTH))) == errno.ENOMEM
        assert box.hits()[0] >= 1
        box.clear()
        DM(context, AllocDmAttr(LENGTH))


def test_map_registers_used_up(box: Box):
    hca, processor = box.machine.hca, box.machine.processor
    assert hca is not None
    arguments = (processor, hca.bus, hca.memory, DeviceDescription(maximum_length=4 * LENGTH))

    def ask(adapter: DmaAdapter) -> int:
        old = processor.raise_irql(DISPATCH_LEVEL)
        status = adapter.allocate_adapter_channel(object(), 2, lambda *_: DEALLOCATE_OBJECT)
        processor.lower_irql(old)
        return status

    adapter = processor.run_thread(get_dma_adapter, *arguments)
    box.set("map-registers-used-up", times=2)
    assert processor.run_thread(get_dma_adapter, *arguments) is None
    assert processor.run_thread(ask, adapter) == STATUS_INSUFFICIENT_RESOURCES
    assert processor.run_thread(ask, adapter) == STATUS_SUCCESS
    assert box.hits() == [2]
    processor.run_thread(adapter.put_adapter)


def test_page_lock_fails(box: Box):
    with box.context() as context:
        pd = PD(context)
        box.set_for_user("page-lock-fails", nth=2)
        MR(pd, LENGTH, 1)
        assert errno_of(lambda: MR(pd, LENGTH, 1)) == errno.ENOMEM
        box.the_other_goes_on()
        MR(pd, LENGTH, 1)


def test_pool_fails(box: Box):
    with box.context() as context:
        box.set_for_user("pool-fails", nth=2)
        context.query_device()
        with box.process.open_device("noop") as device, pytest.raises(NtStatusError) as caught:
            device.device_io_control(NOOP)
        assert caught.value.status == STATUS_QUOTA_EXCEEDED
        box.set_for_user("pool-fails", times=1)
        assert errno_of(lambda: context.query_port(1)) == errno.EDQUOT
        box.the_other_goes_on()
        context.query_port(1)


def test_arena_fails(box: Box):
    box.set("arena-fails", process="hungry")  # who comes later
    with UserProcess.in_process(box.machine.connect_in_process("hungry")) as process:
        with pytest.raises(SofthcaError, match="STATUS_QUOTA_EXCEEDED"):
            process.allocate(LENGTH)
        with box.context(process) as context:
            pd = PD(context)
            with pytest.raises(PyverbsError, match="STATUS_QUOTA_EXCEEDED"):
                MR(pd, LENGTH, 1)
        box.the_other_goes_on()
        box.clear()
        assert process.allocate(LENGTH).address


# The door


def test_message_lost(box: Box):
    with UserProcess.in_process(box.machine.connect_in_process("silent")) as process:
        device = process.open_device("noop")
        box.set("message-lost", session=process.session, nth=1)
        with pytest.raises(Deadlock):
            device.device_io_control(NOOP)
        box.the_other_goes_on()
        assert box.state()["server"]["dropped"]["a fault"] == 1


@pytest.mark.parametrize("part", ["payload", "header"])
def test_message_cut(box: Box, part: str):
    with UserProcess.in_process(box.machine.connect_in_process("cut")) as process:
        context = Context(name="mthca0", process=process)
        box.set("message-cut", process="cut", part=part, nth=1)
        if part == "payload":
            with pytest.raises(PyverbsRDMAError, match="STATUS_INVALID_PARAMETER") as caught:
                context.query_port(1)
            assert caught.value.error_code == errno.EINVAL
            assert context.query_port(1).state == e.IBV_PORT_ACTIVE
        else:
            with pytest.raises(Deadlock):
                context.query_port(1)
        box.the_other_goes_on()


def test_message_doubled(box: Box):
    with box.pair() as pair:
        box.set_for_user("message-doubled")
        for _ in range(3):
            assert pair.context.query_port(1).state == e.IBV_PORT_ACTIVE
        pair.sent.req_notify()
        assert pair.statuses(2) == [OK, OK]
        pair.channel.get_cq_event(pair.sent)
        pair.sent.ack_events(1)
        pair.sender.modify(QPAttr(qp_state=int(e.IBV_QPS_ERR)), e.IBV_QP_STATE)
        box.the_other_goes_on()
