"""The kernel client of the data path: moves messages between two queue pairs it has, by polling.

It posts and polls by the driver's table alone, at PASSIVE_LEVEL or raised to DISPATCH_LEVEL, and
compares what came with what was sent at the end of a run.

Rules: a system thread at PASSIVE_LEVEL. Whoever finds nothing for long lets others run, below
DISPATCH_LEVEL, and gives up after some seconds.
Spec: shared/messages.py (TransferRun); channel_interface/verbs_table.py; docs/benchmark-speed.md.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kernel_proc.channel_interface.work_requests import (
    SEND,
    SIGNALED,
    LocalSegment,
    ReceiveRequest,
    SendRequest,
)
from kernel_proc.clients import verb_steps
from kernel_proc.clients.timed_loop import TimedLoop
from kernel_proc.clients.verbs_connection import opened_verbs
from kernel_proc.scheduling.irql import DISPATCH_LEVEL
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared import verb_codes as codes
from shared.clock import now_ns
from shared.message_codec import MessageError, decode_as
from shared.messages import TransferRun
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_DEVICE_PROTOCOL_ERROR,
    STATUS_INVALID_PARAMETER,
    STATUS_IO_TIMEOUT,
)
from shared.segment import round_to_pages
from shared.verb_messages import PortQuery
from shared.verbs_enums import ibv_wr_opcode

if TYPE_CHECKING:
    from kernel_proc.channel_interface.verbs_table import VerbsTable
    from kernel_proc.io_manager.irp import IoStackLocation, Irp
    from kernel_proc.io_manager.namespace import IoManager

POST_TO_POLL: Final = "post_to_poll"
MESSAGE_RATE: Final = "msg_rate"
MOST_MESSAGES: Final = 1_000_000
LARGEST_PAYLOAD: Final = 1 << 20
MOST_DEPTH: Final = 1024
_SAMPLE: Final = 8
_PORT: Final = 1
_ACCESS: Final = 1 | 2
_WRITE: Final = int(ibv_wr_opcode.IBV_WR_RDMA_WRITE)
_UNTOUCHED: Final = 0xA5
_LOOKS: Final = 64  # empty ones, before others get the kernel's processor
_PATIENCE_NS: Final = 10_000_000_000
_AT_ONCE: Final = 64


class TransferLoop(TimedLoop):
    """A run: samples if messages are timed one by one, then the time of all."""

    __slots__ = ("_io", "_plan")

    def __init__(self, io: "IoManager", irp: "Irp", plan: TransferRun) -> None:
        count = plan.messages if plan.op == POST_TO_POLL else 0
        super().__init__(io.processor, irp.thread, count, plan.warmup)
        self._io = io
        self._plan = plan

    @classmethod
    def planned_by(cls, io: "IoManager", irp: "Irp", location: "IoStackLocation") -> "TransferLoop":
        """Return the run a request asks for; RaisedStatus for one that cannot be performed."""
        try:
            plan = decode_as(
                TransferRun, bytes(irp.system_buffer or b"")[: location.input_buffer_length]
            )
        except MessageError as error:
            raise RaisedStatus(STATUS_INVALID_PARAMETER, str(error)) from error
        if not _is_possible(plan):
            raise RaisedStatus(STATUS_INVALID_PARAMETER, "no run this client performs")
        loop = cls(io, irp, plan)
        if location.output_buffer_length < (len(loop.samples) + 1) * _SAMPLE:
            raise RaisedStatus(STATUS_BUFFER_TOO_SMALL, "no room for the samples")
        return loop

    def perform(self) -> None:
        """Make the queue pairs, move the messages, and look whether they came."""
        with opened_verbs(self._io) as table:
            pair = Pair(table, self._plan, self._rest)
            if self._plan.op == POST_TO_POLL:
                self.run(self._at_level(pair.post_and_poll))
            else:
                stream = self._at_level(lambda: pair.stream(self._plan.messages))
                self._at_level(lambda: pair.stream(self.warmup))()
                begin = now_ns()
                stream()
                self.elapsed_ns = now_ns() - begin
            pair.check()

    def _at_level(self, routine: Callable[[], object]) -> Callable[[], object]:
        """Return a routine that is called at the level of the run."""
        processor = self._processor

        def raised() -> None:
            old = processor.raise_irql(DISPATCH_LEVEL)
            try:
                routine()
            finally:
                processor.lower_irql(old)

        return raised if self._plan.raised else routine

    def _rest(self) -> None:
        """Let others run, at PASSIVE_LEVEL, in the midst of a routine; Stopped if it is to end."""
        processor = self._processor
        level = processor.irql
        processor.lower_irql(0)
        try:
            processor.dispatcher.pause()
            self.breathe()
        finally:
            processor.raise_irql(level)


def _is_possible(plan: TransferRun) -> bool:
    return (
        plan.op in (POST_TO_POLL, MESSAGE_RATE)
        and 1 <= plan.payload <= LARGEST_PAYLOAD
        and 1 <= plan.messages <= MOST_MESSAGES
        and plan.warmup <= MOST_MESSAGES
        and 1 <= plan.chain <= plan.depth <= MOST_DEPTH
        and not plan.depth % plan.chain
        and not (plan.messages % plan.chain or plan.warmup % plan.chain)
    )


class Pair:
    """Two connected queue pairs of one client, and a region of which each has a half."""

    def __init__(self, table: "VerbsTable", plan: TransferRun, rest: Callable[[], None]) -> None:
        self._table = table
        self._plan = plan
        self._rest = rest
        pd = verb_steps.do(table, codes.IOCTL_ALLOC_PD).handle
        self._send_cq = verb_steps.make_cq(table, plan.depth)
        self._receive_cq = verb_steps.make_cq(table, 2 * plan.depth)
        request = verb_steps.qp_request(
            verb_steps.RC,
            pd,
            (self._send_cq, self._receive_cq),
            max_send_wr=plan.depth,
            max_recv_wr=2 * plan.depth,
        )
        first, second = (verb_steps.do(table, codes.IOCTL_CREATE_QP, request) for _ in range(2))
        port = verb_steps.do(table, codes.IOCTL_QUERY_PORT, PortQuery(_PORT))
        path = {"mtu": port.active_mtu, "access": _ACCESS}
        verb_steps.connect(table, first.handle, second.qpn, _PORT, port.lid, **path)
        verb_steps.connect(table, second.handle, first.qpn, _PORT, port.lid, **path)
        self._sender, self._receiver = first.handle, second.handle
        self._make_requests(pd)

    def _make_requests(self, pd: int) -> None:
        import random  # only a run of transfers needs it

        plan, half = self._plan, round_to_pages(self._plan.payload)
        answer = self._table.register_memory(pd, 2 * half, _ACCESS)
        key = verb_steps.require(answer, "register_memory").reply.lkey
        self._memory, self._half = answer.memory, half
        self._sent = random.Random(plan.payload).randbytes(plan.payload)
        self._store(0, self._sent)
        self._store(half, bytes([_UNTOUCHED]) * plan.payload)
        source = (LocalSegment(0, plan.payload, key),)
        target = (LocalSegment(half, plan.payload, key),)
        self._write = (SendRequest(1, _WRITE, source, remote_address=half, rkey=key),)
        last = plan.chain - 1
        self._sends = tuple(
            SendRequest(place, SEND, source, SIGNALED if place == last else 0)
            for place in range(plan.chain)
        )
        self._receives = tuple(ReceiveRequest(0, target) for _ in range(plan.chain))

    def post_and_poll(self) -> None:
        """Write once, and wait for the completion."""
        self._require(self._table.post_send(self._sender, self._write).status)
        self._poll(self._send_cq)

    def stream(self, messages: int) -> None:
        """Send so many messages with a bounded number under way, and wait until all have come."""
        table, chain = self._table, self._plan.chain
        chains = messages // chain
        offered = given = came = sent = 0
        while sent < chains or came < messages:
            # As many receive requests wait as messages can be under way, so none is refused.
            while offered < chains and (offered - came // chain) < 2 * self._plan.depth // chain:
                self._require(table.post_recv(self._receiver, self._receives).status)
                offered += 1
            while given < offered and given - sent < self._plan.depth // chain:
                self._require(table.post_send(self._sender, self._sends).status)
                given += 1
            came += self._poll(self._receive_cq) if came < messages else 0
            if sent < chains:
                sent += self._look(self._send_cq)

    def _look(self, cq: int) -> int:
        """Poll once; return how many have completed."""
        found = self._table.poll_cq(cq, _AT_ONCE).completions
        for one in found:
            self._require(one.status)
        return len(found)

    def _poll(self, cq: int) -> int:
        """Poll until something has completed; return how many."""
        looks = until_ns = 0
        while not (found := self._look(cq)):
            looks += 1
            if looks > self._plan.spin:
                os.sched_yield()
            if not looks % _LOOKS:
                until_ns = until_ns or now_ns() + _PATIENCE_NS
                if now_ns() > until_ns:
                    raise RaisedStatus(STATUS_IO_TIMEOUT, "no completion came")
                self._rest()
        return found

    def check(self) -> None:
        """Compare what came with what was sent."""
        if self._load(self._half, len(self._sent)) != self._sent:
            raise RaisedStatus(STATUS_DEVICE_PROTOCOL_ERROR, "what came is not what was sent")

    def _require(self, status: int) -> None:
        if status:
            raise RaisedStatus(STATUS_DEVICE_PROTOCOL_ERROR, f"status {status} of a request")

    def _store(self, at: int, data: bytes) -> None:
        size = len(self._memory[0])
        done = 0
        while done < len(data):
            piece, inside = divmod(at + done, size)
            length = min(size - inside, len(data) - done)
            self._memory[piece][inside : inside + length] = data[done : done + length]
            done += length

    def _load(self, at: int, length: int) -> bytes:
        size = len(self._memory[0])
        first, inside = divmod(at, size)
        last = (at + length - 1) // size
        return b"".join(self._memory[first : last + 1])[inside : inside + length]
