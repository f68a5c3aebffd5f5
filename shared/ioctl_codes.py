"""Control codes: their layout, and those of the devices both sides know.

No-op device: `Information` = min(InLen, OutLen) when OutLen > 0, else InLen. A code that touches
reads every input byte (CRC-32) and writes output := input for every byte up to `Information`;
a code that does not touch ignores the payload and reports the same `Information`. A failing code
takes a little-endian u32 status as its input, which becomes IoStatus.Status with Information 0.
A direct method without a small input has its OutLen bytes as `Information`: IN_DIRECT reads every
byte of the locked buffer, OUT_DIRECT fills it with NOOP_FILL.
A fast code, known to the device NOOP_FAST_DEVICE alone, is also taken as fast I/O, without an IRP,
if the request has addresses and is completed inline. A blocking code has its dispatch routine
wait until a DPC or the hardware has answered, and is then completed inline.

Benchmark device: IOCTL_BENCHMARK_RUN takes a packed `messages.BenchmarkRun` and returns a raw
native u64 array of nanoseconds, one per operation and then the time of all together;
IOCTL_QUERY_COUNTERS returns a packed `messages.Counters`. IOCTL_TRACE_CONTROL takes a
little-endian u32: 1 empties the kernel's trace ring and switches it on, 0 switches it off;
IOCTL_TRACE_FETCH returns its latest points, as many as the output holds, packed by
`trace_points.pack_points`.

Spec: WDK: Defining I/O Control Codes.
"""

from typing import Final

METHOD_BUFFERED: Final = 0
METHOD_IN_DIRECT: Final = 1
METHOD_OUT_DIRECT: Final = 2
METHOD_NEITHER: Final = 3

FILE_ANY_ACCESS: Final = 0
FILE_READ_ACCESS: Final = 1
FILE_WRITE_ACCESS: Final = 2

_FIRST_VENDOR_FUNCTION: Final = 0x800


def ctl_code(device_type: int, function: int, method: int, access: int) -> int:
    """Build a control code (CTL_CODE)."""
    if not (0 <= device_type <= 0xFFFF and 0 <= function <= 0xFFF):
        raise ValueError(f"device type {device_type:#x} or function {function:#x} out of range")
    if not (0 <= method <= 3 and 0 <= access <= 3):
        raise ValueError(f"method {method} or access {access} out of range")
    return device_type << 16 | access << 14 | function << 2 | method


def method_of(code: int) -> int:
    """Extract the transfer method (METHOD_FROM_CTL_CODE)."""
    return code & 3


NOOP_DEVICE: Final = "noop"
NOOP_FAST_DEVICE: Final = "noop_fast"
NOOP_DEVICE_TYPE: Final = 0x8001
NOOP_FILL: Final = 0xD1

COMPLETION_INLINE: Final = 0
COMPLETION_DPC: Final = 1
COMPLETION_DEVICE: Final = 2
COMPLETION_NAMES: Final = ("inline", "dpc", "device")

_NOOP_TOUCH: Final = _FIRST_VENDOR_FUNCTION
_NOOP_IGNORE: Final = _FIRST_VENDOR_FUNCTION + 0x10
_NOOP_FAIL: Final = _FIRST_VENDOR_FUNCTION + 0x20
_NOOP_FAST: Final = _FIRST_VENDOR_FUNCTION + 0x30
_NOOP_BLOCKING: Final = _FIRST_VENDOR_FUNCTION + 0x40


def _noop(function: int, method: int, completion: int) -> int:
    if completion not in (COMPLETION_INLINE, COMPLETION_DPC, COMPLETION_DEVICE):
        raise ValueError(f"completion {completion} is none of 0 (inline), 1 (dpc), 2 (device)")
    return ctl_code(NOOP_DEVICE_TYPE, function + completion, method, FILE_ANY_ACCESS)


def noop_code(method: int, completion: int, *, touch: bool = True) -> int:
    """Give the no-op code with this method, completed this way, touching the payload or not."""
    return _noop(_NOOP_TOUCH if touch else _NOOP_IGNORE, method, completion)


def noop_fail_code(method: int, completion: int) -> int:
    """Give the no-op code that completes with the status found in its input."""
    return _noop(_NOOP_FAIL, method, completion)


def noop_fast_code(method: int, completion: int = COMPLETION_INLINE) -> int:
    """Give a touching code of NOOP_FAST_DEVICE: taken as fast I/O if inline and not direct."""
    return _noop(_NOOP_FAST, method, completion)


def noop_blocking_code(method: int, completion: int) -> int:
    """Give a touching no-op code whose dispatch routine waits for a DPC or the device."""
    if completion == COMPLETION_INLINE:
        raise ValueError("a blocking request waits for a DPC (1) or the device (2)")
    return _noop(_NOOP_BLOCKING, method, completion)


BENCHMARK_DEVICE: Final = "benchmark"
BENCHMARK_DEVICE_TYPE: Final = 0x8002

IOCTL_BENCHMARK_RUN: Final = ctl_code(
    BENCHMARK_DEVICE_TYPE, _FIRST_VENDOR_FUNCTION, METHOD_BUFFERED, FILE_ANY_ACCESS
)
IOCTL_QUERY_COUNTERS: Final = ctl_code(
    BENCHMARK_DEVICE_TYPE, _FIRST_VENDOR_FUNCTION + 1, METHOD_BUFFERED, FILE_ANY_ACCESS
)
IOCTL_TRACE_CONTROL: Final = ctl_code(
    BENCHMARK_DEVICE_TYPE, _FIRST_VENDOR_FUNCTION + 2, METHOD_BUFFERED, FILE_ANY_ACCESS
)
IOCTL_TRACE_FETCH: Final = ctl_code(
    BENCHMARK_DEVICE_TYPE, _FIRST_VENDOR_FUNCTION + 3, METHOD_BUFFERED, FILE_ANY_ACCESS
)
IOCTL_VERBS_RUN: Final = ctl_code(
    BENCHMARK_DEVICE_TYPE, _FIRST_VENDOR_FUNCTION + 4, METHOD_BUFFERED, FILE_ANY_ACCESS
)
IOCTL_COMMAND_JOURNAL: Final = ctl_code(
    BENCHMARK_DEVICE_TYPE, _FIRST_VENDOR_FUNCTION + 5, METHOD_BUFFERED, FILE_ANY_ACCESS
)
IOCTL_TRANSFER_RUN: Final = ctl_code(
    BENCHMARK_DEVICE_TYPE, _FIRST_VENDOR_FUNCTION + 6, METHOD_BUFFERED, FILE_ANY_ACCESS
)
