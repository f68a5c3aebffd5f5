"""Bringing the HCA up, step by step in the mem-free order, and taking it down.

    QUERY_FW, ENABLE_LAM, MAP_FA, RUN_FW, QUERY_DEV_LIM, SET_ICM_SIZE, MAP_ICM_AUX,
    MAP_ICM of what is reserved, INIT_HCA, QUERY_ADAPTER;
    the driver's PD and its key for all memory; three event queues; MAP_EQ twice;
    event mode unless commands are to be polled, tried by a NOP; CONF_SPECIAL_QP twice;
    MAD_IFC twice for what the node is.

Rules: PASSIVE_LEVEL in a system thread, which waits. VerbRefused means that the HCA is of no use.
Spec: Linux mthca_main.c (mthca_init_arbel, mthca_setup_hca); docs/hca-driver.md.
"""

import errno
from collections.abc import Callable
from typing import Final

from kernel_proc.driver.event_queue import EventQueue, log_size_for
from kernel_proc.driver.hca_driver import HcaDriver, Numbers
from kernel_proc.driver.interrupt_dpc import InterruptDpc
from kernel_proc.driver.limits import Limits, limits_of
from kernel_proc.driver.pinned_memory import LOCAL_WRITE, Regions
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.subnet_queries import query_node
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import registers as reg
from shared.verb_reasons import VerbReason

_NOP_TIMEOUT_NS: Final = 2_000_000_000  # 100 ms on hardware; a loaded host runs the HCA later
_SMALL_EQ_EVENTS: Final = 0x80
_SPECIAL_QPS: Final = 4  # SMI and GSI of two ports, the last reserved ones
_ALL_MEMORY: Final = (1 << 64) - 1

_ASYNC_EVENTS: Final = (
    eqe.EVENT_PATH_MIGRATED,
    eqe.EVENT_COMMUNICATION_ESTABLISHED,
    eqe.EVENT_SQ_DRAINED,
    eqe.EVENT_CQ_ERROR,
    eqe.EVENT_WQ_CATASTROPHIC,
    eqe.EVENT_MIGRATION_FAILED,
    eqe.EVENT_LOCAL_CATASTROPHIC,
    eqe.EVENT_PORT_CHANGE,
    eqe.EVENT_INVALID_REQUEST,
    eqe.EVENT_ACCESS_ERROR,
    eqe.EVENT_SRQ_CATASTROPHIC,
    eqe.EVENT_LAST_WQE_REACHED,
    eqe.EVENT_SRQ_LIMIT,
)
_ASYNC_MASK: Final = sum(1 << kind for kind in _ASYNC_EVENTS)
_COMMAND_MASK: Final = 1 << eqe.EVENT_COMMAND_DONE


def bring_up(driver: HcaDriver, on_fatal: Callable[[str], object]) -> None:
    """Make the HCA ready for verbs, and fill `driver`."""
    _start_firmware(driver)
    _lay_out_icm(driver)
    driver.regions = Regions(driver)
    _make_own_domain(driver)
    _make_event_queues(driver)
    driver.interrupts = interrupts = InterruptDpc(driver, driver.event_queues, on_fatal)
    interrupts.connect()
    _choose_mode(driver)
    # Not before: its NOP tries the interrupt line.
    driver.channel.look_for_events = interrupts.look
    if driver.profile.look_every_ns:
        interrupts.watch(driver.profile.look_every_ns)
    for number in range(2):
        special = driver.limits.device.reserved_qps - _SPECIAL_QPS + 2 * number
        driver.channel.run(op.CONF_SPECIAL_QP, modifier=special, opmod=number)
    query_node(driver)


def _start_firmware(driver: HcaDriver) -> None:
    channel = driver.channel
    answer = channel.run(op.QUERY_FW, outbox_length=abi.FIRMWARE.size)
    driver.firmware = abi.Firmware(*abi.FIRMWARE.unpack(answer.outbox))
    lam = channel.execute(op.ENABLE_LAM)
    if lam.status not in (op.CMD_STAT_OK, op.CMD_STAT_LAM_NOT_PRE):
        raise VerbRefused(errno.EIO, VerbReason.COMMAND_FAILED, 0, op.ENABLE_LAM << 8 | lam.status)
    driver.icm.give_for_good(op.MAP_FA, driver.firmware.firmware_pages)
    channel.run(op.RUN_FW)
    answer = channel.run(op.QUERY_DEV_LIM, outbox_length=abi.DEVICE_LIMITS.size)
    device = abi.DeviceLimits(*abi.DEVICE_LIMITS.unpack(answer.outbox))
    driver.limits = limits_of(device, driver.profile)
    driver.numbers = Numbers(driver.limits, driver.profile.share_percent)


def _tables(limits: Limits) -> dict[str, tuple[int, int, int]]:
    """Return each table's entry size, entries, and how many of them are always mapped."""
    device = limits.device
    return {
        "eqc": (abi.EQC_SIZE, 1 << limits.log_eqs, 1 << limits.log_eqs),
        "mtt": (
            abi.MTT_SEGMENT_SIZE,
            1 << limits.log_mtt_segments,
            device.reserved_mtt_segments,
        ),
        "mpt": (abi.MPT_SIZE, 1 << limits.log_mpts, device.reserved_mpts),
        "qpc": (abi.QPC_SIZE, 1 << limits.log_qps, device.reserved_qps),
        "eqpc": (abi.EQPC_SIZE, 1 << limits.log_qps, device.reserved_qps),
        "rdb": (abi.RDB_SIZE, 1 << limits.log_qps, 0),
        "cqc": (abi.CQC_SIZE, 1 << limits.log_cqs, device.reserved_cqs),
        "srqc": (abi.SRQC_SIZE, 1 << limits.log_srqs, device.reserved_srqs),
        "mgm": (abi.MGM_ENTRY_SIZE, 1 << limits.log_mgms, 1 << limits.log_mgms),
    }


def _lay_out_icm(driver: HcaDriver) -> None:
    """Give each table whole chunks of the ICM, map what is reserved, and start the HCA."""
    channel, limits = driver.channel, driver.limits
    bases: dict[str, int] = {}
    size = 0
    tables = _tables(limits)
    for name, (entry_size, entries, _) in tables.items():
        bases[name] = size
        driver.icm.add_table(name, size, entry_size)
        size += -(-entry_size * entries // abi.ICM_CHUNK_SIZE) * abi.ICM_CHUNK_SIZE
    auxiliary = channel.run(op.SET_ICM_SIZE, in_param=size).out_param
    driver.icm.give_for_good(op.MAP_ICM_AUX, auxiliary)
    for name, (_, _, reserved) in tables.items():
        if reserved:
            driver.icm.get_range(name, 0, reserved)
    init = abi.InitHca(
        qpc_base=bases["qpc"],
        eqpc_base=bases["eqpc"],
        rdb_base=bases["rdb"],
        cqc_base=bases["cqc"],
        srqc_base=bases["srqc"],
        eqc_base=bases["eqc"],
        mpt_base=bases["mpt"],
        mtt_base=bases["mtt"],
        mgm_base=bases["mgm"],
        log_qps=limits.log_qps,
        log_cqs=limits.log_cqs,
        log_srqs=limits.log_srqs,
        log_eqs=limits.log_eqs,
        log_mpts=limits.log_mpts,
        log_mtt_segments=limits.log_mtt_segments,
        log_mgms=limits.log_mgms,
        uar_pages=limits.uar_pages,
    )
    channel.run(op.INIT_HCA, inbox=abi.INIT_HCA_MAILBOX.pack(*init))
    answer = channel.run(op.QUERY_ADAPTER, outbox_length=abi.ADAPTER.size)
    driver.adapter = abi.Adapter(*abi.ADAPTER.unpack(answer.outbox))


def _make_own_domain(driver: HcaDriver) -> None:
    """Make the kernel's protection domain, and in it a key for all memory."""
    pdn = driver.numbers.pd.allocate()
    assert pdn is not None, "the first number of a table"
    driver.pdn = pdn
    driver.dma_key = driver.regions.keys.allocate_key()
    driver.regions.keys.give_to_hardware(
        abi.MptEntry(
            flags=abi.MPT_FLAG_REGION
            | abi.MPT_FLAG_PHYSICAL
            | abi.MPT_FLAG_MIO
            | abi.MPT_FLAG_LOCAL_READ
            | abi.MPT_FLAG_LOCAL_WRITE,
            page_size=0,
            key=driver.dma_key,
            pd=pdn,
            start=0,
            length=_ALL_MEMORY,
        )
    )


def _make_event_queues(driver: HcaDriver) -> None:
    """Make the completion, the asynchronous and the command queue, in this order."""
    sizes = {
        reg.COMPLETION_EQ: log_size_for(1 << driver.limits.log_cqs),
        reg.ASYNC_EQ: log_size_for(_SMALL_EQ_EVENTS),
        reg.COMMAND_EQ: log_size_for(_SMALL_EQ_EVENTS),
    }
    for number, log_size in sizes.items():
        _make_event_queue(driver, number, log_size)


def _make_event_queue(driver: HcaDriver, number: int, log_size: int) -> None:
    buffer = driver.buffers.allocate_pages(eqe.EQE_SIZE << log_size)
    queue = EventQueue(number, log_size, buffer, driver.link.registers)
    driver.event_queues.append(queue)
    queue.region = region = driver.regions.register_kernel(buffer, driver.pdn, LOCAL_WRITE)
    context = abi.EqContext(
        flags=abi.EQ_STATE_ALWAYS_ARMED,
        start=0,
        log_size=log_size << abi.LOG_SIZE_SHIFT,
        reserved_10=0,
        interrupt=driver.adapter.interrupt_pin,
        pd=driver.pdn,
        lkey=region.lkey,
    )
    driver.channel.run(op.SW2HW_EQ, modifier=number, inbox=abi.EQ_CONTEXT.pack(*context))


def _choose_mode(driver: HcaDriver) -> None:
    channel = driver.channel
    channel.run(op.MAP_EQ, modifier=reg.ASYNC_EQ, in_param=_ASYNC_MASK)
    if not driver.polls_commands:
        channel.run(op.MAP_EQ, modifier=reg.COMMAND_EQ, in_param=_COMMAND_MASK)
        firmware = driver.firmware
        channel.use_events(firmware.log_outstanding, firmware.command_ring_entries)
    channel.run(op.NOP, modifier=op.NOP_MODIFIER, timeout_ns=_NOP_TIMEOUT_NS)


def take_down(driver: HcaDriver) -> None:
    """Stop an HCA nobody uses any more, in the opposite order; a dead one is left alone."""
    channel = driver.channel
    if driver.dead:
        return
    for port in range(1, driver.limits.ports + 1):
        channel.run(op.CLOSE_IB, modifier=port)
    for number in range(2):
        channel.run(op.CONF_SPECIAL_QP, modifier=0, opmod=number)
    channel.run(op.MAP_EQ, modifier=op.MAP_EQ_UNMAP | reg.ASYNC_EQ, in_param=_ASYNC_MASK)
    if not driver.polls_commands:
        channel.use_polling()
        channel.run(op.MAP_EQ, modifier=op.MAP_EQ_UNMAP | reg.COMMAND_EQ, in_param=_COMMAND_MASK)
    driver.stop_interrupts()
    for queue in driver.event_queues:
        channel.run(op.HW2SW_EQ, modifier=queue.number)
        assert queue.region is not None
        driver.regions.release(queue.region)
    driver.regions.keys.take_from_hardware(driver.dma_key)
    channel.run(op.CLOSE_HCA)
    driver.icm.unmap_all()
    channel.run(op.UNMAP_ICM_AUX)
    channel.run(op.UNMAP_FA)
    channel.execute(op.DISABLE_LAM)
