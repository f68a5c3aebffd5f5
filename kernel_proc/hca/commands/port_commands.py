"""Commands on ports and multicast groups.

Spec: Linux drivers/infiniband/hw/mthca (mthca_mad.c, mthca_mcg.c, mthca_cmd.c).
"""

from typing import Final

from kernel_proc.hca.command import Command, CommandRefused, bad_index, bad_parameter
from kernel_proc.hca.hca_tables import FirmwareState, HcaTables
from kernel_proc.hca.port import ACTIVE, DOWN, Port
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import management_datagrams as mad

_PORT_MASK: Final = 0xFFFF  # a MAD's source LID is above it
_GID_SIZE: Final = 16
_MTU_BYTES_TO_CODE: Final = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}


def _port(hca: HcaTables, number: int) -> Port:
    if not 1 <= number <= len(hca.ports):
        raise bad_parameter()
    return hca.ports[number - 1]


def init_ib(hca: HcaTables, command: Command) -> None:
    """Bring a port up; an MTU or a GUID of 0 leaves what is."""
    port = _port(hca, command.modifier)
    _, _, mtu, _, _, _, system_guid = command.unpack(mad.INIT_IB_MAILBOX)
    code = _MTU_BYTES_TO_CODE.get(mtu, mtu)
    if code > port.max_mtu:
        raise bad_parameter()
    port.mtu = code or port.mtu
    hca.management.system_image_guid = system_guid or hca.management.system_image_guid
    port.set_state(ACTIVE)


def close_ib(hca: HcaTables, command: Command) -> None:
    """Take a port down."""
    _port(hca, command.modifier).set_state(DOWN)


def set_ib(hca: HcaTables, command: Command) -> None:
    """Set a port's capability mask; reset its Q_Key counter, set the system GUID, if flagged."""
    port = _port(hca, command.modifier)
    flags, capabilities, guid = command.unpack(mad.SET_IB_MAILBOX)
    if flags & mad.SET_IB_RESET_QKEY_VIOLATIONS:
        port.qkey_violations = 0
    if flags & mad.SET_IB_SYSTEM_IMAGE_GUID:
        hca.management.system_image_guid = guid
    port.capabilities = capabilities


def mad_ifc(hca: HcaTables, command: Command) -> None:
    """Have a management datagram answered by the port's agent."""
    port = _port(hca, command.modifier & _PORT_MASK)
    datagram = command.inbox(mad.MAD_SIZE)
    command.check_outbox()
    answer = hca.management.answer(port, datagram)
    if answer is None:
        raise CommandRefused(op.CMD_STAT_BAD_PKT)
    command.outbox(answer)


def _group(hca: HcaTables, command: Command) -> int:
    index = command.modifier
    if index >= hca.multicast.size:
        raise bad_index()
    hca.require_icm(hca.bases.mgm_base, index, abi.MGM_ENTRY_SIZE)
    return index


def read_mgm(hca: HcaTables, command: Command) -> None:
    """Answer an entry of the multicast table."""
    command.outbox(hca.multicast.read(_group(hca, command)))


def write_mgm(hca: HcaTables, command: Command) -> None:
    """Replace an entry of the multicast table."""
    index = _group(hca, command)
    hca.multicast.write(index, command.inbox(abi.MGM_ENTRY_SIZE))


def mgid_hash(hca: HcaTables, command: Command) -> None:
    """Answer where the chain for a GID begins."""
    command.result = hca.multicast.hash_of(command.inbox(_GID_SIZE))


_READY: Final = FirmwareState.INITIALISED

HANDLERS: Final = {
    op.INIT_IB: (init_ib, _READY),
    op.CLOSE_IB: (close_ib, _READY),
    op.SET_IB: (set_ib, _READY),
    op.MAD_IFC: (mad_ifc, _READY),
    op.READ_MGM: (read_mgm, _READY),
    op.WRITE_MGM: (write_mgm, _READY),
    op.MGID_HASH: (mgid_hash, _READY),
}
