"""The record a queue pair sends: made once, filled for each run, made anew when its path changes.

Spec: IBA vol. 1, 9.2 (BTH) and 9.3 (extended headers).
"""

from typing import Final

from kernel_proc.hca.engine import operations as ops
from kernel_proc.hca.in_hand import Outgoing
from kernel_proc.hca.packets import Path, Request, make_grh
from kernel_proc.hca.port import Port
from kernel_proc.hca.qp_table import QueuePair


class SendRecords:
    """Records of connected queue pairs, and the port each leaves by."""

    def __init__(self, ports: list[Port]) -> None:
        self._ports: Final = ports

    def ready(self, qp: QueuePair, out: Outgoing) -> tuple[Request, Port]:
        """Return the record with the fields of the entry in hand, but for run and flags."""
        record, port = out.record, out.port
        if (
            record is None
            or port is None
            or out.context is not qp.context
            or out.port_version != port.version
        ):
            record, port = self.make(qp, out)
        record.opcode = out.opcode
        record.psn = qp.send_psn
        record.length = out.length
        record.imm_data = out.imm_data
        record.address = out.remote_address
        record.rkey = out.rkey
        record.srqn = out.srqn
        record.compare_add = out.compare_add
        record.swap = out.swap
        return record, port

    def make(self, qp: QueuePair, out: Outgoing) -> tuple[Request, Port]:
        """Make the record anew: the queue pair's attributes or the port's tables have changed."""
        context = qp.context
        port = self._ports[context.port - 1]
        grh = b""
        if context.path_grh:
            grh = make_grh(
                port.gid(context.path_sgid_index), context.path_dgid, context.path_flow_label,
                context.path_traffic_class, context.path_hop_limit, 0,
            )  # fmt: skip
        path = Path(
            port.lid, context.path_dlid, context.path_sl, port.pkeys[context.pkey_index],
            context.mtu + ops.MTU_SHIFT, grh,
        )  # fmt: skip
        arrives_at = ops.ARRIVES_AT[context.transport]
        record = Request(path, arrives_at, qp.number, context.remote_qpn)
        out.record = record
        out.context = context
        out.port = port
        out.port_version = port.version
        return record, port
