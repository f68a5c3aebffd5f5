"""Hostile requests of the request socket as plain data: a valid one of each kind, and changes.

A request is `[kind, {field: value}, payload]`; the payload is hex. A value is a number, the name of
a handle the session has, or of a place in the sandbox.
"""

import struct
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from shared import envelope
from shared.envelope import (
    EVENT_QUERY,
    EVENT_SET,
    FLAG_ANY_THREAD,
    FLAG_INPUT_INLINE,
    FLAG_NOTIFICATION,
    FLAG_OUTPUT_INLINE,
    HEADER,
    PACKET,
    Header,
    make_header,
)
from shared.ioctl_codes import noop_code
from tests.hostile.recipes import NUMBERS

KINDS = {
    name: value
    for name, value in vars(envelope).items()
    if name.startswith("KIND_") and name not in ("KIND_REPLY", "KIND_COMPLETION")
}
HANDLES = ("file", "overlapped", "event", "port")
PLACES = (
    "start", "odd", "last", "before", "read-only", "behind", "null", "one", "first-page",
    "not-user", "sign", "top", "top-page",
)  # fmt: skip
_INLINE = FLAG_INPUT_INLINE
_BUFFERED = noop_code(0, 0)

#: A valid request of every kind; `input_length` is the payload's unless it is said.
VALID: dict[str, tuple[dict[str, Any], bytes]] = {
    "KIND_CREATE": ({"control_code": 3, "flags": _INLINE}, b"noop"),
    "KIND_CLOSE": ({"file_handle": "event"}, b""),
    "KIND_DUPLICATE": ({"file_handle": "file"}, b""),
    "KIND_DEVICE_CONTROL": (
        {"file_handle": "overlapped", "control_code": _BUFFERED, "output_length": 64,
         "event_handle": "event", "flags": _INLINE | FLAG_OUTPUT_INLINE}, bytes(64),
    ),
    "KIND_CANCEL": ({"file_handle": "overlapped", "flags": FLAG_ANY_THREAD}, b""),
    "KIND_WAIT": ({"file_handle": "event", "information": 10**6}, b""),
    "KIND_DELAY": ({"information": 10**6}, b""),
    "KIND_DEQUEUE": (
        {"file_handle": "port", "output_length": 4096, "flags": FLAG_OUTPUT_INLINE}, b"",
    ),
    "KIND_CREATE_EVENT": ({"flags": FLAG_NOTIFICATION}, b""),
    "KIND_EVENT": ({"file_handle": "event", "control_code": EVENT_SET}, b""),
    "KIND_CREATE_PORT": ({}, b""),
    "KIND_ASSOCIATE": ({"file_handle": "overlapped", "event_handle": "port"}, b""),
    "KIND_POST": ({"file_handle": "port", "flags": _INLINE}, PACKET.pack(1, 2, 3, 0)),
    "KIND_THREAD_EXIT": ({}, b""),
    "KIND_CANCEL_SYNCHRONOUS": ({}, b""),
    "KIND_ECHO": ({}, b"echo"),
}  # fmt: skip

_WIDTHS = {
    name: 32 if code == "I" else 64 if code == "Q" else 16
    for name, code in zip(
        Header._fields, HEADER.format.lstrip("<").removesuffix("4x").replace("IHH", "IHH"),
        strict=True,
    )
}  # fmt: skip
_CHANGED = (
    "flags", "thread", "file_handle", "request_id", "control_code", "event_handle",
    "input_address", "output_address", "input_length", "output_length", "apc_context", "sequence",
    "information", "status", "iosb_status", "session", "epoch", "version", "kind",
)  # fmt: skip
_CODES = [noop_code(method, completion) for method in range(4) for completion in range(3)]
_ADDRESSES = ("input_address", "output_address")


def frames(
    kind: str,
    changes: Mapping[str, Any],
    payload: bytes | None,
    own: Mapping[str, int],
    names: Mapping[str, int],
) -> list[bytes]:
    """Make the frames of a request; `own` are the credentials, `names` handles and places."""
    fields, body = VALID[kind]
    body = body if payload is None else payload
    values: dict[str, Any] = {
        "kind": KINDS[kind], "input_length": len(body), "version": envelope.VERSION,
    } | dict(own) | fields | dict(changes)  # fmt: skip
    numbers = {
        name: (names[value] if isinstance(value, str) else value) & ((1 << _WIDTHS[name]) - 1)
        for name, value in values.items()
    }
    version = numbers.pop("version")
    header = bytearray(make_header(numbers.pop("kind"), **numbers))
    struct.pack_into("<H", header, 4, version)
    return [bytes(header), body] if body else [bytes(header)]


def _value(name: str) -> st.SearchStrategy[Any]:
    if name in _ADDRESSES:
        return st.sampled_from(PLACES)
    if name in ("file_handle", "event_handle"):
        return st.sampled_from((*HANDLES, *NUMBERS))
    if name == "control_code":
        return st.sampled_from((*_CODES, EVENT_QUERY, *NUMBERS))
    if name == "flags":
        return st.integers(0, 0x7FF) | st.sampled_from(NUMBERS)
    if name == "thread":
        return st.integers(0, 4)
    return st.sampled_from(NUMBERS)


_change = st.sampled_from(_CHANGED).flatmap(lambda name: st.tuples(st.just(name), _value(name)))
requests = st.tuples(
    st.sampled_from(sorted(VALID)),
    st.lists(_change, max_size=4).map(dict),
    st.none() | st.sampled_from((b"", b"n", bytes(4), bytes(32), bytes(256), b"\xff" * 65536)),
)
