"""Where requests arrive: which queue pair they are for, and whether it listens to their sender.

What does not fit is dropped without an answer, and counted with the reason: at the queue pair if
there is one, else at the port. A path that was found to fit is not looked at again until the
queue pair's attributes or the port's tables change.

Spec: IBA vol. 1, 9.6 (header validation), 10.9.3 (P_Keys), 10.5 (multicast).
"""

from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.engine.datagram_receiver import DatagramReceiver
from kernel_proc.hca.engine.operations import MTU_SHIFT
from kernel_proc.hca.engine.responders import Receive
from kernel_proc.hca.multicast_table import MulticastTable
from kernel_proc.hca.packets import NOTHING, Answer, Path, Request
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QpTable, QueuePair
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as states

MULTICAST_QPN: Final = 0xFF_FFFF
_UD: Final = abi.QPC_TRANSPORT_UD
_LISTENS: Final = tuple(
    state in (states.RTR, states.RTS, states.SQD, states.SQE) for state in range(8)
)
_LIMITED: Final = 0x7FFF  # a P_Key without its membership bit


def pkeys_match(one: int, other: int) -> bool:
    """Say whether two P_Keys let packets through: one partition, one full member at least."""
    if (one ^ other) & _LIMITED or not one & _LIMITED:
        return False
    return bool((one | other) & ~_LIMITED)


class Arrivals:
    """Finds whom a request is for."""

    def __init__(
        self,
        queue_pairs: QpTable,
        multicast: MulticastTable,
        receive: tuple[Receive | None, ...],
        datagrams: DatagramReceiver,
    ) -> None:
        self._queue_pairs: Final = queue_pairs
        self._multicast: Final = multicast
        self._find: Final = queue_pairs.find
        self._receive_connected: Final = receive
        self._datagrams: Final = datagrams

    def receive(self, port: Port, request: Request) -> Answer:
        """Take a request that came to a port, and return the answer."""
        qp = self._find(request.destination_qpn)
        if qp is None:
            if request.destination_qpn == MULTICAST_QPN and request.transport == _UD:
                self._receive_multicast(port, request)
            else:
                port.drops["no such queue pair"] += 1
            return NOTHING
        context = qp.context
        transport = request.transport
        if transport != context.transport or not _LISTENS[qp.state]:
            qp.counters.drops["not listening"] += 1
            return NOTHING
        receive = self._receive_connected[transport]
        if receive is None:
            if transport == _UD:
                self._receive_datagram(port, qp, request)
            else:  # a queue pair that only sends
                qp.counters.drops["not listening"] += 1
            return NOTHING
        incoming = qp.incoming
        path = request.path
        if (
            incoming.checked_path is not path
            or incoming.checked_context is not context
            or incoming.checked_version != port.version
        ):
            reason = self._why_not(port, qp, path)
            if reason:
                self._drop(port, qp, reason)
                return NOTHING
            mtu_shift = context.mtu + MTU_SHIFT
            incoming.other_mtu = 0
            if path.mtu_shift != mtu_shift:
                incoming.other_mtu = min(path.mtu_shift, mtu_shift)
            incoming.checked_path = path
            incoming.checked_context = context
            incoming.remote_qpn = context.remote_qpn
            incoming.access = context.access
            incoming.pd = context.pd
            incoming.checked_version = port.version
        if request.source_qpn != incoming.remote_qpn:
            qp.counters.drops["another sender"] += 1
            return NOTHING
        return receive(port, qp, request)

    def _why_not(self, port: Port, qp: QueuePair, path: Path) -> str:
        """Return why a connected queue pair does not take packets of a path, or nothing."""
        context = qp.context
        if context.port != port.number:
            return "another port"
        if path.slid != context.path_dlid:
            return "another sender"
        if path.grh and not port.has_gid(packets.grh_destination(path.grh)):
            return "another GID"
        if not pkeys_match(path.pkey, port.pkeys[context.pkey_index]):
            return "P_Key"
        return ""

    def _drop(self, port: Port, qp: QueuePair, reason: str) -> None:
        qp.counters.drops[reason] += 1
        if reason == "P_Key":
            port.count_bad_pkey()

    def _receive_datagram(self, port: Port, qp: QueuePair, request: Request) -> None:
        path = request.path
        if qp.context.port != port.number:
            self._drop(port, qp, "another port")
        elif path.grh and not self._is_for(port, packets.grh_destination(path.grh), request):
            self._drop(port, qp, "another GID")
        elif not pkeys_match(path.pkey, port.pkeys[qp.context.pkey_index]):
            self._drop(port, qp, "P_Key")
        else:
            self._datagrams.receive(port, qp, request)

    @staticmethod
    def _is_for(port: Port, gid: bytes, request: Request) -> bool:
        return request.destination_qpn == MULTICAST_QPN or port.has_gid(gid)

    def _receive_multicast(self, port: Port, request: Request) -> None:
        """Give every member of the group at this port its own copy."""
        grh = request.path.grh
        members = self._multicast.members(packets.grh_destination(grh)) if grh else []
        taken = False
        for number in members:
            qp = self._queue_pairs.find(number)
            if qp is None or qp.context.transport != _UD or qp.context.port != port.number:
                continue
            if number == request.source_qpn and qp.context.flags & abi.QPC_BLOCK_SELF_MULTICAST:
                continue
            taken = True
            if _LISTENS[qp.state]:
                self._receive_datagram(port, qp, request)
            else:
                qp.counters.drops["not listening"] += 1
        if not taken:
            port.drops["no member of the group"] += 1
