"""Commands of bring-up, shut-down and description of the device.

Spec: Linux drivers/infiniband/hw/mthca/mthca_main.c and mthca_cmd.c; docs/command-interface.md.
"""

from typing import Final

from kernel_proc.hca.command import Command, CommandRefused, bad_parameter
from kernel_proc.hca.hca_tables import FirmwareState, HcaTables
from kernel_proc.hca.icm import map_mailbox_length
from kernel_proc.hca.management import DEVICE_ID, REVISION, VENDOR_ID
from kernel_proc.hca.port import ACTIVE
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import registers

FIRMWARE_VERSION: Final = 5 << 32 | 3 << 16 | 0
FIRMWARE_PAGES: Final = 16
_INTERRUPT_PIN: Final = 1
_BOARD_ID: Final = b"SOFTHCA"


def nop(hca: HcaTables, command: Command) -> None:
    """Do nothing, which shows that completion events arrive."""


def query_fw(hca: HcaTables, command: Command) -> None:
    """Answer the firmware's version and what it wants."""
    firmware = abi.Firmware(
        version=FIRMWARE_VERSION,
        log_outstanding=registers.COMMANDS_OUTSTANDING_LOG2,
        firmware_pages=FIRMWARE_PAGES,
        catastrophic_offset=registers.CATASTROPHIC_OFFSET,
        catastrophic_words=registers.CATASTROPHIC_WORDS,
        eq_consumer_offset=registers.EQ_CONSUMER_OFFSET,
        command_ring_entries=registers.COMMAND_RING_ENTRIES,
    )
    command.outbox(abi.FIRMWARE.pack(*firmware))


def query_dev_lim(hca: HcaTables, command: Command) -> None:
    """Answer the limits."""
    command.outbox(abi.DEVICE_LIMITS.pack(*hca.limits))


def query_adapter(hca: HcaTables, command: Command) -> None:
    """Answer who made the device."""
    adapter = abi.Adapter(VENDOR_ID, DEVICE_ID, REVISION, _INTERRUPT_PIN, _BOARD_ID)
    command.outbox(abi.ADAPTER.pack(*adapter))


def attached_memory(hca: HcaTables, command: Command) -> None:
    """Say that the card has no memory of its own, which is no failure."""
    raise CommandRefused(op.CMD_STAT_LAM_NOT_PRE)


def map_fa(hca: HcaTables, command: Command) -> None:
    """Take pages for the firmware."""
    if hca.firmware != FirmwareState.STOPPED:
        raise CommandRefused(op.CMD_STAT_BAD_SYS_STATE)
    mailbox = command.inbox(map_mailbox_length(command.modifier))
    hca.icm.firmware_pages += hca.icm.count_run_pages(mailbox)


def unmap_fa(hca: HcaTables, command: Command) -> None:
    """Give the firmware's pages back, which stops it."""
    if hca.firmware == FirmwareState.INITIALISED:
        raise CommandRefused(op.CMD_STAT_BAD_SYS_STATE)
    hca.icm.firmware_pages = 0
    hca.icm.auxiliary_pages = 0
    hca.icm.unmap_all()
    hca.firmware = FirmwareState.STOPPED


def run_fw(hca: HcaTables, command: Command) -> None:
    """Start the firmware that was mapped."""
    if hca.firmware != FirmwareState.STOPPED or hca.icm.firmware_pages < FIRMWARE_PAGES:
        raise CommandRefused(op.CMD_STAT_BAD_SYS_STATE)
    hca.firmware = FirmwareState.RUNNING


def set_icm_size(hca: HcaTables, command: Command) -> None:
    """Take the size of the ICM, answer the auxiliary pages it needs."""
    if hca.firmware != FirmwareState.RUNNING:
        raise CommandRefused(op.CMD_STAT_BAD_SYS_STATE)
    command.result = hca.icm.set_size(command.in_param)


def map_icm_aux(hca: HcaTables, command: Command) -> None:
    """Take auxiliary pages."""
    mailbox = command.inbox(map_mailbox_length(command.modifier))
    hca.icm.auxiliary_pages += hca.icm.count_run_pages(mailbox)


def unmap_icm_aux(hca: HcaTables, command: Command) -> None:
    """Give the auxiliary pages back."""
    if hca.firmware == FirmwareState.INITIALISED:
        raise CommandRefused(op.CMD_STAT_BAD_SYS_STATE)
    hca.icm.auxiliary_pages = 0


def map_icm(hca: HcaTables, command: Command) -> None:
    """Map pages of the ICM."""
    icm = hca.icm
    if not icm.size or icm.auxiliary_pages < icm.auxiliary_needed():
        raise CommandRefused(op.CMD_STAT_BAD_SYS_STATE)
    icm.map(command.inbox(map_mailbox_length(command.modifier)))


def unmap_icm(hca: HcaTables, command: Command) -> None:
    """Unmap pages of the ICM."""
    hca.icm.unmap(command.in_param, command.modifier)


def init_hca(hca: HcaTables, command: Command) -> None:
    """Take the tables' places and sizes, and bring the ports up."""
    if hca.firmware == FirmwareState.INITIALISED:
        raise CommandRefused(op.CMD_STAT_BAD_SYS_STATE)
    layout = abi.InitHca(*command.unpack(abi.INIT_HCA_MAILBOX))
    limits = hca.limits
    sizes = (
        (layout.log_qps, limits.log_max_qps),
        (layout.log_cqs, limits.log_max_cqs),
        (layout.log_srqs, limits.log_max_srqs),
        (layout.log_eqs, limits.log_max_eqs),
        (layout.log_mpts, limits.log_max_mpts),
        (layout.log_mtt_segments, hca.settings.log_max_mtt_segments),
        (layout.log_mgms, limits.log_max_mgms),
    )
    if any(size > most for size, most in sizes):
        raise CommandRefused(op.CMD_STAT_EXCEED_LIM)
    tables = (
        (layout.qpc_base, abi.QPC_SIZE << layout.log_qps),
        (layout.eqpc_base, abi.EQPC_SIZE << layout.log_qps),
        (layout.rdb_base, abi.RDB_SIZE << layout.log_qps),
        (layout.cqc_base, abi.CQC_SIZE << layout.log_cqs),
        (layout.srqc_base, abi.SRQC_SIZE << layout.log_srqs),
        (layout.eqc_base, abi.EQC_SIZE << layout.log_eqs),
        (layout.mpt_base, abi.MPT_SIZE << layout.log_mpts),
        (layout.mtt_base, abi.MTT_SEGMENT_SIZE << layout.log_mtt_segments),
        (layout.mgm_base, abi.MGM_ENTRY_SIZE << layout.log_mgms),
    )
    if any(base + size > hca.icm.size for base, size in tables):
        raise bad_parameter()
    hca.bases = layout
    hca.qps.configure(layout.log_qps)
    hca.cqs.configure(layout.log_cqs)
    hca.srqs.configure(layout.log_srqs)
    hca.translation.configure(layout.log_mpts, layout.log_mtt_segments)
    hca.multicast.configure(layout.log_mgms)
    hca.firmware = FirmwareState.INITIALISED
    for port in hca.ports:
        port.set_state(ACTIVE)


def close_hca(hca: HcaTables, command: Command) -> None:
    """Drop every object; the firmware goes on running."""
    hca.stop()
    for port in hca.ports:
        port.reset()
    hca.firmware = FirmwareState.RUNNING


_ALWAYS: Final = FirmwareState.STOPPED
_RUNNING: Final = FirmwareState.RUNNING

HANDLERS: Final = {
    op.NOP: (nop, _ALWAYS),
    op.QUERY_FW: (query_fw, _ALWAYS),
    op.ENABLE_LAM: (attached_memory, _ALWAYS),
    op.DISABLE_LAM: (attached_memory, _ALWAYS),
    op.MAP_FA: (map_fa, _ALWAYS),
    op.UNMAP_FA: (unmap_fa, _ALWAYS),
    op.RUN_FW: (run_fw, _ALWAYS),
    op.QUERY_DEV_LIM: (query_dev_lim, _RUNNING),
    op.QUERY_ADAPTER: (query_adapter, _RUNNING),
    op.SET_ICM_SIZE: (set_icm_size, _RUNNING),
    op.MAP_ICM_AUX: (map_icm_aux, _RUNNING),
    op.UNMAP_ICM_AUX: (unmap_icm_aux, _RUNNING),
    op.MAP_ICM: (map_icm, _RUNNING),
    op.UNMAP_ICM: (unmap_icm, _RUNNING),
    op.INIT_HCA: (init_hca, _RUNNING),
    op.CLOSE_HCA: (close_hca, FirmwareState.INITIALISED),
}
