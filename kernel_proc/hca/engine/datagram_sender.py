"""Datagrams: each entry says itself where it goes, and completes when it is sent.

Whatever becomes of a datagram afterwards, its sender is told of success. One longer than the
port's MTU is sent and goes nowhere. An address handle that cannot be ends in LOC_QP_OP_ERR.

Spec: IBA vol. 1, 9.8.3 (UD), C10-93.1.1 (too long), 11.2.2 (address handles).
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.hca import packets
from kernel_proc.hca.device_memory import Piece
from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.engine.completer import Completer
from kernel_proc.hca.engine.pieces import is_shared, reach_elements
from kernel_proc.hca.engine.send_entries import SOLICITED
from kernel_proc.hca.in_hand import Outgoing
from kernel_proc.hca.memory_key import TranslationFault
from kernel_proc.hca.packets import NO_DATA, Path, Request, make_grh
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QueuePair
from kernel_proc.hca.translation import Translation
from kernel_proc.hca.work_queue import WorkQueue
from kernel_proc.hca_abi.device_settings import GID_TABLE_LENGTH
from shared.wqe_layout import ADDRESS_VECTOR, AddressVector

_STOP: Final = -1
_OWN_QKEY: Final = 1 << 31  # in the entry: take the queue pair's
_QPN_MASK: Final = 0xFF_FFFF
_MOST_SL: Final = 15

Fetch = Callable[[QueuePair, Outgoing, list[Piece]], int]


class DatagramSender:
    """Sends entries of UD queue pairs."""

    def __init__(
        self, translation: Translation, ports: list[Port], completer: Completer, fetch: Fetch
    ) -> None:
        self._translation: Final = translation
        self._ports: Final = ports
        self._completer: Final = completer
        self._fetch: Final = fetch

    def send(self, qp: QueuePair, queue: WorkQueue, out: Outgoing) -> int:
        """Send the entry in hand; return the bytes moved, or -1."""
        port = self._ports[qp.context.port - 1]
        record = self._record(qp, out, port)
        if record is None:
            self._completer.failed(qp, ops.LOC_QP_OP_ERR)
            return _STOP
        length = out.length
        too_long = length > 1 << port.mtu + ops.MTU_SHIFT
        try:
            if too_long:
                qp.counters.drops["longer than the MTU"] += 1
            elif out.fetched is not None:
                record.data = out.fetched
            elif length:
                memory = reach_elements(
                    self._translation, qp.context.pd, ops.LOCAL_READ, out.elements, 0, length
                )
                if not isinstance(memory, memoryview) and not is_shared(memory):
                    return self._fetch(qp, out, memory)
                record.data = memory
        except TranslationFault:
            self._completer.failed(qp, ops.LOC_PROT_ERR)
            return _STOP
        if not too_long:
            self._launch(qp, out, record, port)
        if not out.busy:
            return _STOP  # it was sent to itself, and that failed
        qp.send_psn = (qp.send_psn + 1) & ops.PSN_MASK
        out.fetched = None
        self._completer.succeeded(qp, queue, out, 0)
        return length

    def _launch(self, qp: QueuePair, out: Outgoing, record: Request, port: Port) -> None:
        flags = packets.WHOLE
        if out.flags & SOLICITED:
            flags |= packets.SOLICITED
        record.flags = flags
        record.opcode = out.opcode
        record.psn = qp.send_psn
        record.length = out.length
        record.imm_data = out.imm_data
        record.destination_qpn = out.remote_qpn & _QPN_MASK
        qkey = out.remote_qkey
        record.qkey = qp.context.qkey if qkey & _OWN_QKEY else qkey
        port.send(record)
        record.data = NO_DATA

    def _record(self, qp: QueuePair, out: Outgoing, port: Port) -> Request | None:
        """Return the queue pair's record with the path of the entry's address vector."""
        record = out.record
        path = out.vector_path
        if (
            record is None
            or path is None
            or out.context is not qp.context
            or out.port_version != port.version
            or out.port is not port
            or out.sent_vector != out.vector
        ):
            path = self._path(qp, out, port)
            if path is None:
                return None
            record = Request(path, qp.context.transport, qp.number, 0)
            out.record = record
            out.context = qp.context
            out.port = port
            out.port_version = port.version
            out.vector_path = path
            out.sent_vector = out.vector
        if path.grh:
            self._size_grh(record, path, out)
        return record

    @staticmethod
    def _size_grh(record: Request, path: Path, out: Outgoing) -> None:
        """Put this datagram's length into the global route header."""
        payload = out.length + (4 if out.opcode == ops.SEND_WITH_IMM else 0)
        size = packets.padded_length(payload)
        record.path = path._replace(grh=path.grh[:4] + size.to_bytes(2, "big") + path.grh[6:])

    def _path(self, qp: QueuePair, out: Outgoing, port: Port) -> Path | None:
        """Make a path of the address vector; None if it names no way from this port."""
        vector = AddressVector(*ADDRESS_VECTOR.unpack(out.vector))
        if vector.pd != qp.context.pd:
            return None
        if vector.port != port.number or vector.sl > _MOST_SL or vector.is_global > 1:
            return None
        grh = b""
        if vector.is_global:
            if vector.sgid_index >= GID_TABLE_LENGTH:
                return None
            grh = make_grh(
                port.gid(vector.sgid_index), vector.dgid, vector.flow_label,
                vector.traffic_class, vector.hop_limit, 0,
            )  # fmt: skip
        pkey = port.pkeys[qp.context.pkey_index]
        return Path(port.lid, vector.dlid, vector.sl, pkey, port.mtu + ops.MTU_SHIFT, grh)
