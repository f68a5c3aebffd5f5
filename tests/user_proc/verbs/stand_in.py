"""A kernel of words only: it records what the verbs ask and answers as a table says.

It speaks the wire of a session in this process, so that everything of the user side above the
socket is the real thing. What the HCA does in memory, tests do by hand.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shared import doorbell_layout, verb_codes
from shared import verb_messages as v
from shared.envelope import (
    FLAG_COMPLETION_FOLLOWS,
    FLAG_IOSB_WRITTEN,
    FLAG_OUTPUT_INLINE,
    KIND_COMPLETION,
    KIND_CREATE,
    KIND_DEVICE_CONTROL,
    KIND_REPLY,
    KIND_THREAD_EXIT,
    VERSION,
    Header,
    make_header,
    parse_header,
)
from shared.live_words import words64
from shared.message_codec import decode, encode
from shared.messages import Welcome
from shared.nt_status import (
    STATUS_CANCELLED,
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_OBJECT_NAME_NOT_FOUND,
    STATUS_PENDING,
    STATUS_SUCCESS,
)
from shared.segment import create_segment, map_segment
from shared.verb_codes import VERB_NAMES, VERB_RESULT
from shared.verb_reasons import VerbReason
from shared.wqe_layout import receive_stride, ring_entries, send_stride

FILE = 0x44
NOTIFICATIONS = {code for code, name in VERB_NAMES.items() if name.endswith("event")}


class Refusal(NamedTuple):
    """What a verb is refused with."""

    errno: int
    reason: int = int(VerbReason.NONE)
    object: int = 0
    detail: int = 0


class Arena(NamedTuple):
    status: int
    reason: str
    arena_id: int
    descriptor: int


class Doorbells(NamedTuple):
    status: int
    reason: str
    number: int
    length: int
    status_length: int
    descriptors: tuple[int, ...]


Answer = v.VerbMessage | Refusal | int | None
Handler = Callable[[Any], Answer]


class Wire:
    """The door of one session; `asked` are the verbs in order, `answers` overrides the table."""

    def __init__(self) -> None:
        self.welcome = Welcome(7, 9, os.getpid(), VERSION, 1 << 16, 64, 64, 1 << 28)
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, Handler] = {}
        self.pended: dict[int, deque[Header]] = {code: deque() for code in NOTIFICATIONS}
        self.delivered: dict[int, list[int]] = {}
        self.on_idle: Callable[[], None] = lambda: None
        self.open_files = 0
        self._answers: deque[list[bytes]] = deque()
        self._completions: deque[list[bytes]] = deque()
        self._next = 1
        self._slot = 0
        self._segment = create_segment("stand-in", doorbell_layout.SEGMENT_LENGTH)
        self._status = create_segment("stand-in", doorbell_layout.STATUS_PAGE_LENGTH)
        self.words = words64(memoryview(map_segment(self._segment, doorbell_layout.SEGMENT_LENGTH)))
        self.status_words = words64(
            memoryview(map_segment(self._status, doorbell_layout.STATUS_PAGE_LENGTH))
        )

    # The door

    def post(self, frames: Sequence[bytes]) -> None:
        header = parse_header(frames[0])
        payload = frames[1] if frames[1:] else b""
        if header.kind == KIND_THREAD_EXIT:
            return
        if header.kind == KIND_DEVICE_CONTROL:
            self._control(header, payload)
        elif header.kind == KIND_CREATE and payload not in (b"mthca0", b"noop"):
            self._reply(header, STATUS_OBJECT_NAME_NOT_FOUND)
        else:
            self.open_files += {KIND_CREATE: 1}.get(header.kind, 0)
            self._reply(header, STATUS_SUCCESS, file_handle=FILE)

    def take_answer(self, thread: int) -> list[bytes]:
        return self._answers.popleft()

    def take_completion(self) -> list[bytes] | None:
        return self._completions.popleft() if self._completions else None

    def run(self, predicate: Callable[[], bool], timeout_ns: int | None) -> bool:
        if not predicate() and timeout_ns is None:
            self.on_idle()
            assert predicate(), "it would wait for ever"
        return predicate()

    def allocate_arena(self, length: int) -> Arena:
        return Arena(STATUS_SUCCESS, "", 1, create_segment("stand-in-arena", length))

    def arena_mapped(self, arena: int, base: int) -> int:
        return STATUS_SUCCESS

    def free_arena(self, arena: int) -> int:
        return STATUS_SUCCESS

    def open_doorbells(self) -> Doorbells:
        copies = os.dup(self._segment), os.dup(self._status), os.eventfd(0)
        return Doorbells(
            STATUS_SUCCESS,
            "",
            3,
            doorbell_layout.SEGMENT_LENGTH,
            doorbell_layout.STATUS_PAGE_LENGTH,
            copies,
        )

    def close(self) -> None:
        for descriptor in (self._segment, self._status):
            os.close(descriptor)

    # What tests look at and do

    def names(self) -> list[str]:
        """The verbs asked, notification requests left out."""
        return [name for name, _ in self.asked if not name.startswith("get_")]

    def last(self, name: str) -> Any:
        """The latest request of a verb."""
        return [request for asked, request in self.asked if asked == name][-1]

    def index(self, slot: int) -> int:
        return self.words[doorbell_layout.FIRST_SLOT_WORD + slot]

    def tell(self, code: int, event_type: int, handle: int = 0, count: int = 1) -> None:
        """Complete the oldest pended notification request with an event."""
        event = v.Event(int(event_type), handle, 0, count)
        which = event_type != v.COMPLETION_EVENT
        self.delivered.setdefault(handle, [0, 0])[which] += count
        self.end_request(code, VERB_RESULT.pack(0, 0, 0, 0) + encode(event))

    def end_request(self, code: int, output: bytes, status: int = STATUS_SUCCESS) -> None:
        header = self.pended[code].popleft()
        completion = make_header(
            KIND_COMPLETION,
            flags=FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE,
            request_id=header.request_id,
            information=len(output),
            iosb_status=status,
        )
        self._completions.append([completion, output])

    # Answers

    def _reply(self, header: Header, status: int, payload: bytes = b"", **fields: int) -> None:
        fields.setdefault("flags", 0)
        reply = make_header(KIND_REPLY, request_id=header.request_id, status=status, **fields)
        self._answers.append([reply, payload] if payload else [reply])

    def _control(self, header: Header, payload: bytes) -> None:
        code = header.control_code
        request = decode(payload) if payload else None
        self.asked.append((VERB_NAMES[code], request))
        if code in NOTIFICATIONS:
            self.pended[code].append(header)
            self._reply(header, STATUS_PENDING, flags=FLAG_COMPLETION_FOLLOWS)
            return
        name = VERB_NAMES[code]
        handler = self.answers.get(name) or getattr(self, f"_{name}", self._nothing)
        answer = handler(request)
        if isinstance(answer, int):
            self._reply(header, answer, flags=FLAG_IOSB_WRITTEN, iosb_status=answer)
            return
        refusal = answer if isinstance(answer, Refusal) else Refusal(0)
        output = VERB_RESULT.pack(*refusal)
        if answer is not None and not isinstance(answer, Refusal):
            output += encode(answer)
        self._reply(
            header,
            STATUS_SUCCESS,
            output,
            flags=FLAG_IOSB_WRITTEN | FLAG_OUTPUT_INLINE,
            information=len(output),
        )

    def _handle(self) -> int:
        self._next += 1
        return self._next

    def _slots(self, number: int) -> list[int]:
        self._slot += number
        return list(range(self._slot - number, self._slot))

    def _nothing(self, request: Any) -> None:
        return None

    def _open_context(self, request: None) -> v.OpenContext:
        return v.OpenContext(3, 1, 2, 64, 64, 400)

    def _query_device(self, request: None) -> v.QueryDevice:
        values: list[Any] = [*range(100, 132)]
        values[0], values[1], values[2] = "5.3.0", 0x0002C90300112233, 0x0002C90300112236
        return v.QueryDevice(*values)

    def _query_device_ex(self, request: None) -> v.QueryDeviceEx:
        return v.QueryDeviceEx((1 << 64) - 1, 1_000_000, 105, 1 << 18)

    def _query_clock(self, request: None) -> v.DeviceClock:
        return v.DeviceClock(1_000, 5_000_000_000)

    def _alloc_dm(self, request: v.AllocDm) -> v.Object:
        return v.Object(self._handle())

    def _copy_from_dm(self, request: v.DmRange) -> v.DmContents:
        return v.DmContents(bytes((request.offset + n) & 0xFF for n in range(request.length)))

    def _import_pd(self, request: v.Object) -> v.Object:
        return v.Object(self._handle())

    def _import_mr(self, request: v.ImportMr) -> v.MrImported:
        return v.MrImported(self._handle(), 0x1234, 0x1235, 4096)

    def _import_dm(self, request: v.Object) -> v.DmImported:
        return v.DmImported(self._handle(), 64)

    def _query_port(self, request: v.PortQuery) -> Answer:
        if request.port not in (1, 2):
            return Refusal(22, VerbReason.NO_SUCH_PORT, request.port, 2)
        return v.QueryPort(
            4, 5, 4, 3, 0x2510A68, 1 << 31, 0, 0, 2, request.port, 1, 0, 4, 0, 18, 0, 2, 2, 5, 1, 0
        )

    def _query_gid(self, request: v.PortQuery) -> Answer:
        if request.index > 2:
            return Refusal(22, VerbReason.NO_SUCH_INDEX, request.index, 3)
        full = request.index != 1
        gid = bytes.fromhex("fe80000000000000") + bytes([request.index + 1] * 8)
        return v.QueryGid(gid if full else bytes(16))

    def _query_pkey(self, request: v.PortQuery) -> Answer:
        if request.index > 1:
            return Refusal(22, VerbReason.NO_SUCH_INDEX, request.index, 2)
        return v.QueryPkey((0xFFFF, 0x8001)[request.index])

    def _alloc_pd(self, request: None) -> v.Object:
        return v.Object(self._handle())

    def _create_ah(self, request: v.CreateAh) -> v.AhCreated:
        return v.AhCreated(self._handle(), 3)

    def _open_xrcd(self, request: v.OpenXrcd) -> v.Object:
        return v.Object(self._handle())

    def _alloc_mw(self, request: v.AllocMw) -> v.WindowMade:
        handle = self._handle()
        return v.WindowMade(handle, handle << 8 | 0xFF)

    def _reg_mr(self, request: v.RegMr) -> v.Registered:
        handle = self._handle()
        return v.Registered(handle, handle << 8, handle << 8 | 1)

    def _reg_dm_mr(self, request: v.RegDmMr) -> v.Registered:
        handle = self._handle()
        return v.Registered(handle, handle << 8, handle << 8 | 1)

    def _rereg_mr(self, request: v.ReregMr) -> v.Registered:
        return v.Registered(request.handle, request.handle << 8 | 2, request.handle << 8 | 3)

    def _create_cq(self, request: v.CreateCq) -> v.CqCreated:
        handle = self._handle()
        return v.CqCreated(handle, handle, (1 << request.cqe.bit_length()) - 1, *self._slots(2))

    def _resize_cq(self, request: v.ResizeCq) -> v.CqCreated:
        return v.CqCreated(request.handle, 1, (1 << request.cqe.bit_length()) - 1, 0, 0)

    def _destroyed(self, request: v.Object) -> v.Destroyed:
        return v.Destroyed(*self.delivered.get(request.handle, (0, 0)))

    _destroy_cq = _destroy_qp = _destroy_srq = _destroyed

    def _create_srq(self, request: v.CreateSrq) -> v.SrqCreated:
        handle = self._handle()
        entries = ring_entries(request.max_wr)
        return v.SrqCreated(handle, handle, entries, request.max_sge, *self._slots(1))

    def _query_srq(self, request: v.Object) -> v.SrqAttributes:
        return v.SrqAttributes(16, 2, 5)

    def _create_qp(self, request: v.CreateQp) -> v.QpCreated:
        handle = self._handle()
        stride = receive_stride(request.max_recv_sge)
        receive = 0 if request.srq else ring_entries(request.max_recv_wr)
        send = send_stride(request.max_send_sge, request.max_inline_data)
        return v.QpCreated(
            handle,
            0x40000 + handle,
            ring_entries(request.max_send_wr),
            receive,
            request.max_send_sge,
            request.max_recv_sge,
            request.max_inline_data,
            -(-receive * stride // send) * send,
            send,
            stride,
            *self._slots(2),
        )

    def _query_qp(self, request: v.Object) -> v.QpAttributes:
        return _qp_attributes()


def _qp_attributes() -> v.QpAttributes:
    """Number every field, but for those of another kind."""
    names = v.QpAttributes._fields
    numbered = dict(zip(names, range(1, len(names) + 1), strict=True))
    fixed: dict[str, Any] = {
        "qp_state": 6,
        "path_mtu": 3,
        "path_mig_state": 1,
        "ah_is_global": 1,
        "ah_dgid": bytes(range(16)),
        "qp_type": 2,
    }
    return v.QpAttributes(**numbered | fixed)


INVALID_REQUEST = STATUS_INVALID_DEVICE_REQUEST
CANCELLED = STATUS_CANCELLED
codes = verb_codes
