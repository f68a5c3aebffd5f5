"""The UD queue pair of an IPoIB interface, and the pages its datagrams lie in.

Each place is a page: a received one has room for the 40 bytes of the GRH, the encapsulation and a
packet. The places are numbered, and a request's wr_id is its place.

Rules: making and ending at PASSIVE_LEVEL; sending and taking at <= DISPATCH_LEVEL.
Spec: RFC 4391, sections 4 and 5; channel_interface/verbs_table.py.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from kernel_proc.channel_interface.verbs_table import EventRoutine
from kernel_proc.channel_interface.work_requests import (
    LocalSegment,
    ReceiveRequest,
    SendRequest,
    WorkCompletion,
)
from kernel_proc.clients import verb_steps
from kernel_proc.clients.ipoib.frames import ENCAPSULATION, HardwareAddress, broadcast_gid
from kernel_proc.clients.ipoib.neighbours import Packet
from kernel_proc.clients.verbs_connection import open_verbs
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared import verb_codes as codes
from shared.ipoib_layout import IPOIB_MTU
from shared.nt_status import STATUS_DEVICE_NOT_READY
from shared.segment import PAGE_SIZE
from shared.verb_messages import CreateAh, Multicast, Object, PortQuery
from shared.verbs_enums import ibv_access_flags, ibv_port_state, ibv_qp_create_flags, ibv_wc_flags

if TYPE_CHECKING:
    from kernel_proc.io_manager.namespace import IoManager

SENDS: Final = 64
RECEIVES: Final = 128
#: The broadcast group's; where there is a subnet manager it says which.
QKEY: Final = 0x0B1B
BROADCAST_LID: Final = 0xC000
BROADCAST_QPN: Final = 0xFF_FFFF
GRH_BYTES: Final = 40
_ROOM: Final = GRH_BYTES + ENCAPSULATION.size + IPOIB_MTU
_WRITABLE: Final = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)
_ACTIVE: Final = int(ibv_port_state.IBV_PORT_ACTIVE)
_NOT_TO_ITSELF: Final = int(ibv_qp_create_flags.IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)
_GRH: Final = int(ibv_wc_flags.IBV_WC_GRH)
_MULTICAST: Final = 0xFF
_DGID_AT: Final = 24  # within the GRH


class Received(NamedTuple):
    """A datagram that came: who sent it, and the bytes behind the GRH."""

    qpn: int
    lid: int
    by_multicast: bool
    frame: bytes


class DatagramPort:
    """A port's UD QP in RTS, a member of the broadcast group, with receives posted."""

    def __init__(
        self,
        io: "IoManager",
        port: int,
        on_completion: Callable[[], object],
        on_event: EventRoutine,
    ) -> None:
        self.port = port
        self._free = list(range(SENDS))
        self._file, self._table = open_verbs(io)
        try:
            self._make(on_completion)
            self._join()
            self._table.set_event_routine(on_event)
        except BaseException:
            self._file.dereference()
            raise

    def _make(self, on_completion: Callable[[], object]) -> None:
        table = self._table
        self.pd = verb_steps.do(table, codes.IOCTL_ALLOC_PD).handle
        self._cq = verb_steps.make_cq(table, SENDS + RECEIVES, on_completion)
        made = verb_steps.do(
            table,
            codes.IOCTL_CREATE_QP,
            verb_steps.qp_request(
                verb_steps.UD,
                self.pd,
                (self._cq, self._cq),
                max_send_wr=SENDS,
                max_recv_wr=RECEIVES,
                create_flags=_NOT_TO_ITSELF,
            ),
        )
        self._qp, qpn = made.handle, made.qpn
        answer = table.register_memory(self.pd, (SENDS + RECEIVES) * PAGE_SIZE, _WRITABLE)
        key = verb_steps.require(answer, "register_memory").reply.lkey
        self._pages = answer.memory
        self._key = key
        self._receives = [
            ReceiveRequest(place, (LocalSegment(place * PAGE_SIZE, _ROOM, key),))
            for place in range(SENDS, SENDS + RECEIVES)
        ]
        self._read_port()
        self.address = HardwareAddress(qpn, self.gid)

    def _read_port(self) -> None:
        """Ask what the port is now."""
        table, port = self._table, PortQuery(self.port)
        state = verb_steps.do(table, codes.IOCTL_QUERY_PORT, port)
        if state.state != _ACTIVE:
            raise RaisedStatus(STATUS_DEVICE_NOT_READY, f"port {self.port} is not active")
        self.lid = state.lid
        self.gid: bytes = verb_steps.do(table, codes.IOCTL_QUERY_GID, port).gid
        self.pkey = verb_steps.do(table, codes.IOCTL_QUERY_PKEY, port).pkey

    def refresh(self) -> None:
        """Learn LID and GID anew: an event says that they changed."""
        self._read_port()
        self.address = HardwareAddress(self.address.qpn, self.gid)

    def _join(self) -> None:
        """Become a member of the broadcast group, and take what comes."""
        table, gid = self._table, broadcast_gid(self.pkey)
        verb_steps.start_datagrams(table, self._qp, self.port, QKEY)
        verb_steps.do(table, codes.IOCTL_ATTACH_MCAST, Multicast(self._qp, gid, BROADCAST_LID))
        self.broadcast = self._make_handle(BROADCAST_LID, gid)
        table.post_recv(self._qp, self._receives)
        self.arm()

    def close(self) -> None:
        """Give everything back; no completion routine runs afterwards."""
        self._file.dereference()

    # Address handles

    def make_handle(self, lid: int) -> int:
        """Make an address handle for a LID; RaisedStatus if it cannot be. PASSIVE_LEVEL."""
        return self._make_handle(lid, b"")

    def _make_handle(self, lid: int, gid: bytes) -> int:
        known = int(bool(gid))
        request = CreateAh(self.pd, self.port, lid, 0, 0, 0, known, gid, 0, 0, known, 0)
        handle: int = verb_steps.do(self._table, codes.IOCTL_CREATE_AH, request).handle
        return handle

    def end_handle(self, handle: int) -> None:
        """End an address handle; of a dead HCA's it does not matter. PASSIVE_LEVEL."""
        self._table.call(codes.IOCTL_DESTROY_AH, Object(handle))

    # Datagrams

    @property
    def has_room(self) -> bool:
        """Tell whether a packet can be sent now."""
        return bool(self._free)

    def send(self, packet: Packet, handle: int, qpn: int) -> bool:
        """Post a packet in its encapsulation; False if it was not taken."""
        place = self._free.pop()
        frame = ENCAPSULATION.pack(packet.ethertype, 0) + packet.data
        self._pages[place][: len(frame)] = frame
        segment = LocalSegment(place * PAGE_SIZE, len(frame), self._key)
        request = SendRequest(
            place, segments=(segment,), ah=handle, remote_qpn=qpn, remote_qkey=QKEY
        )
        if self._table.post_send(self._qp, (request,)).status:
            self._free.append(place)
            return False
        return True

    def arm(self) -> None:
        """Have the completion routine called at the next completion."""
        self._table.req_notify_cq(self._cq, False)

    def completions(self, most: int) -> Iterator[tuple[WorkCompletion, bool]]:
        """Take completions; of each tell whether it is a send's, whose place is free again."""
        for one in self._table.poll_cq(self._cq, most).completions:
            is_send = one.wr_id < SENDS
            if is_send:
                self._free.append(one.wr_id)
            yield one, is_send

    def take(self, completion: WorkCompletion) -> Received:
        """Copy what came to a receive's place, and post the place again."""
        place, end = completion.wr_id, min(completion.byte_len, _ROOM)
        page = self._pages[place]
        by_multicast = bool(completion.wc_flags & _GRH) and page[_DGID_AT] == _MULTICAST
        frame = bytes(page[GRH_BYTES:end])
        self._table.post_recv(self._qp, (self._receives[place - SENDS],))
        return Received(completion.src_qp, completion.slid, by_multicast, frame)
