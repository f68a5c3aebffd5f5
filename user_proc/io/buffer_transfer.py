"""How a caller's buffers go to the kernel: inline, or by address, as the code's method asks.

    BUFFERED               input and output inline
    IN_DIRECT, OUT_DIRECT  input inline, the other buffer by address
    NEITHER                both by address

What is longer than the largest payload goes by address whatever the method, and so does what the
caller wants to be raw. An arena buffer knows its address; any other buffer is pinned where it lies,
so that nothing is copied here.

Rules: any thread. What `keep` holds must live until the kernel is done with the request.
Spec: WDK: Buffer Descriptions for I/O Control Codes.
"""

from typing import TYPE_CHECKING, Any, Final, Protocol

from shared.envelope import FLAG_INPUT_INLINE, FLAG_OUTPUT_INLINE
from shared.ioctl_codes import METHOD_BUFFERED, METHOD_IN_DIRECT, METHOD_NEITHER

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class ArenaLike(Protocol):
    """A buffer that knows where it lies: what an arena hands out."""

    address: int
    length: int

    @property
    def view(self) -> memoryview:
        """Its bytes; raises once it is released."""


class Pinned(Protocol):
    """Some other buffer, held where it is as long as this object lives."""

    address: int
    length: int


class Pin(Protocol):
    """What pins a buffer; BufferError for a read-only one that is to be written."""

    def __call__(self, buffer: object, *, writable: bool = False) -> Pinned:
        """Hold the buffer where it is."""


if TYPE_CHECKING:
    Readable = ReadableBuffer | ArenaLike | None
    Writable = WriteableBuffer | ArenaLike | None

Payload = bytes | bytearray | memoryview

#: flags, input address, input length, output address, output length, payload, where inline output
#: is to be stored, what to keep.
Transfer = tuple[int, int, int, int, int, Payload | None, memoryview | None, object]

_BOTH_INLINE: Final = FLAG_INPUT_INLINE | FLAG_OUTPUT_INLINE


def plan_transfer(
    method: int, source: "Readable", target: "Writable", limit: int, pin: Pin
) -> Transfer:
    """Decide how both buffers of a request travel."""
    if method == METHOD_BUFFERED:
        payload = None if source is None else bytes_of(source)
        view = None if target is None else _writable_bytes_of(target)
        input_length = 0 if payload is None else len(payload)
        output_length = 0 if view is None else len(view)
        if input_length <= limit and output_length <= limit:
            return _BOTH_INLINE, 0, input_length, 0, output_length, payload, view, None
    return _plan_by_address(method, source, target, limit, pin)


def plan_raw(method: int, source: "Readable", target: "Writable", pin: Pin) -> Transfer:
    """Send both buffers by address whatever the method: what fast I/O needs."""
    keep: list[object] = []
    input_address, input_length = _locate(source, False, pin, keep)
    output_address, output_length = _locate(target, method != METHOD_IN_DIRECT, pin, keep)
    return 0, input_address, input_length, output_address, output_length, None, None, keep


def _plan_by_address(
    method: int, source: "Readable", target: "Writable", limit: int, pin: Pin
) -> Transfer:
    """Plan a request of which at least one buffer is told by its address."""
    keep: list[object] = []
    payload = None
    if method != METHOD_NEITHER and source is not None:
        payload = bytes_of(source)
        if len(payload) <= limit:
            flags, input_address, input_length = FLAG_INPUT_INLINE, 0, len(payload)
        else:
            payload = None
    if payload is None:
        flags = 0
        input_address, input_length = _locate(source, False, pin, keep)
    # The second buffer of IN_DIRECT is an input too: it need not be writable.
    writable = method != METHOD_IN_DIRECT
    output_address, output_length = _locate(target, writable, pin, keep)
    return flags, input_address, input_length, output_address, output_length, payload, None, keep


def bytes_of(buffer: Any) -> Payload:
    """See any contiguous buffer as bytes."""
    kind = type(buffer)
    if kind is bytes or kind is bytearray:
        return buffer  # type: ignore[no-any-return]  # its type was looked at
    if kind is not memoryview:
        buffer = buffer.view if hasattr(buffer, "view") else memoryview(buffer)
    view: memoryview = buffer
    return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")


def _writable_bytes_of(buffer: Any) -> memoryview:
    view = memoryview(bytes_of(buffer))
    if view.readonly:
        raise _read_only(buffer)
    return view


def _read_only(buffer: object) -> TypeError:
    return TypeError(f"the output buffer must be writable, this {type(buffer).__name__} is not")


def _locate(buffer: Any, writable: bool, pin: Pin, keep: list[object]) -> tuple[int, int]:
    """Give address and length of a buffer, NULL when there is none; note what holds it there."""
    if buffer is None:
        return 0, 0
    if not hasattr(buffer, "address"):
        try:
            buffer = pin(buffer, writable=writable)
        except BufferError as error:
            if writable and memoryview(buffer).readonly:
                raise _read_only(buffer) from None
            raise TypeError(f"the buffer cannot be passed by its address: {error}") from None
    elif buffer.view.readonly and writable:
        raise _read_only(buffer)
    keep.append(buffer)
    return buffer.address, buffer.length
