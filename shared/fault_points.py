"""The points at which a fault can be set, what each takes, and the control codes that do it.

Each code is METHOD_BUFFERED and its answer JSON: `{"error": sentence}`, or
    IOCTL_SET_FAULT      input: a `Fault`; {"number": n}
    IOCTL_CLEAR_FAULTS   input: the name of a point, or nothing for all; {"cleared": how many}
    IOCTL_LIST_FAULTS    no input; {"faults": [...]}, or {"faults": [...], "error": ...} if the HCA
                         does not say how often its own have struck

Both the one who sets a fault and the kernel judge it by `check_fault`.
"""

from typing import Final, NamedTuple

from shared.fault_messages import Fault
from shared.ioctl_codes import FILE_ANY_ACCESS, METHOD_BUFFERED, ctl_code

#: The kernel's device for faults; it is there without an HCA, too.
FAULT_DEVICE: Final = "fault_control"
FAULT_DEVICE_TYPE: Final = 0x8005
IOCTL_SET_FAULT: Final = ctl_code(FAULT_DEVICE_TYPE, 0x800, METHOD_BUFFERED, FILE_ANY_ACCESS)
IOCTL_CLEAR_FAULTS: Final = ctl_code(FAULT_DEVICE_TYPE, 0x801, METHOD_BUFFERED, FILE_ANY_ACCESS)
IOCTL_LIST_FAULTS: Final = ctl_code(FAULT_DEVICE_TYPE, 0x802, METHOD_BUFFERED, FILE_ANY_ACCESS)
FAULT_OUTPUT_LENGTH: Final = 65_536
MOST_FAULTS: Final = 64  # at one time

DEVICE: Final = "HCA"
KERNEL: Final = "kernel"
DOOR: Final = "door"

#: Which of the calls that fit; without any of them all.
COUNTED: Final = ("nth", "every", "probability", "seed", "times")
HEADER_PART: Final = "header"
PAYLOAD_PART: Final = "payload"
PARTS: Final = (PAYLOAD_PART, HEADER_PART)
CERTAIN: Final = 1_000_000  # the probability in millionths of what happens always

_S: Final = 1_000_000_000
LONGEST_TIME_NS: Final = 600 * _S
LONGEST_HOLD_NS: Final = 60 * _S  # of a kernel that does nothing at all
LONGEST_STEP_NS: Final = _S // 10  # of a kernel or an HCA that is slow, at each step

_OF_A_USER: Final = ("session", "process")
_OF_A_REQUEST: Final = ("queue_pair", "port")


class FaultPoint(NamedTuple):
    """Where it is, which fields it must have, which it may have, and whether its calls count."""

    place: str
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    counts: bool = True
    longest_time_ns: int = LONGEST_TIME_NS
    longest_lasting_ns: int = LONGEST_TIME_NS
    #: One of `session` and `process` must be given: else who sets it would be struck as well.
    of_somebody: bool = False


FAULT_POINTS: Final[dict[str, FaultPoint]] = {
    "command-fails": FaultPoint(DEVICE, ("status",), ("command",)),
    "command-late": FaultPoint(DEVICE, ("time_ns",), ("command",)),
    "completion-lost": FaultPoint(DEVICE, (), ("command",)),
    "interrupt-lost": FaultPoint(DEVICE),
    "interrupt-doubled": FaultPoint(DEVICE),
    "event-queue-full": FaultPoint(DEVICE, ("lasts_ns",), counts=False),
    "port-down": FaultPoint(DEVICE, ("port", "lasts_ns"), counts=False),
    "link-down": FaultPoint(DEVICE, ("lasts_ns",), ("port",), counts=False),
    "request-lost": FaultPoint(DEVICE, (), _OF_A_REQUEST),
    "request-doubled": FaultPoint(DEVICE, (), _OF_A_REQUEST),
    "ack-lost": FaultPoint(DEVICE, (), _OF_A_REQUEST),
    "remote-key-corrupt": FaultPoint(DEVICE, (), _OF_A_REQUEST),
    "local-key-corrupt": FaultPoint(DEVICE, (), ("queue_pair",)),
    "hca-slow": FaultPoint(DEVICE, ("time_ns", "lasts_ns"), longest_time_ns=LONGEST_STEP_NS),
    "hca-paused": FaultPoint(DEVICE, ("lasts_ns",), counts=False),
    "hca-failed": FaultPoint(DEVICE, counts=False),
    "hca-killed": FaultPoint(KERNEL, counts=False),
    "kernel-slow": FaultPoint(
        KERNEL, ("time_ns", "lasts_ns"), _OF_A_USER, longest_time_ns=LONGEST_STEP_NS
    ),
    "kernel-paused": FaultPoint(
        KERNEL, ("lasts_ns",), counts=False, longest_lasting_ns=LONGEST_HOLD_NS
    ),
    "hca-memory-fails": FaultPoint(KERNEL),
    "map-registers-used-up": FaultPoint(KERNEL),
    "page-lock-fails": FaultPoint(KERNEL, (), _OF_A_USER),
    "pool-fails": FaultPoint(KERNEL, (), _OF_A_USER, of_somebody=True),
    "arena-fails": FaultPoint(KERNEL, (), _OF_A_USER, of_somebody=True),
    "message-lost": FaultPoint(DOOR, (), _OF_A_USER, of_somebody=True),
    "message-cut": FaultPoint(DOOR, ("part",), _OF_A_USER, of_somebody=True),
    "message-doubled": FaultPoint(DOOR, (), _OF_A_USER, of_somebody=True),
}


class FaultError(ValueError):
    """A fault that cannot be; the text is one sentence."""


def fields_of(point: FaultPoint) -> tuple[str, ...]:
    """Return every field a fault of this point may have."""
    return (*point.needs, *point.takes, *(COUNTED if point.counts else ()))


def check_fault(fault: Fault) -> FaultPoint:
    """Return the point of a fault; FaultError says what is wrong with it."""
    name = fault.point
    point = FAULT_POINTS.get(name)
    if point is None:
        raise FaultError(no_such_point(name))
    given = {field for field in fault._fields[1:] if getattr(fault, field)}
    wrong = sorted(given.difference(fields_of(point)))
    if wrong:
        raise FaultError(f"{name} has no {word_of(wrong[0])}")
    for field in point.needs:
        if field not in given:
            raise FaultError(f"{name} needs {word_of(field)}")
    if point.of_somebody and not given.intersection(_OF_A_USER):
        raise FaultError(f"{name} needs session or process: else it would strike who sets it, too")
    if len(given.intersection({"nth", "every", "probability"})) > 1:
        raise FaultError("nth, every and probability exclude each other")
    if "seed" in given and "probability" not in given:
        raise FaultError("seed goes with probability")
    if fault.probability > CERTAIN:
        raise FaultError("probability is at most 1")
    _check_length("time", fault.time_ns, point.longest_time_ns)
    _check_length("lasts", fault.lasts_ns, point.longest_lasting_ns)
    if fault.part and fault.part not in PARTS:
        raise FaultError(f"part is {' or '.join(PARTS)}, not {fault.part!r}")
    return point


def no_such_point(name: str) -> str:
    """Return the sentence about a name that no fault has."""
    return f"there is no fault {name!r}: 'softhca fault points' lists them"


def word_of(field: str) -> str:
    """Return what people call a field."""
    return field.removesuffix("_ns").replace("_", "-")


def _check_length(name: str, length_ns: int, longest_ns: int) -> None:
    if length_ns > longest_ns:
        raise FaultError(f"{name} is at most {longest_ns / _S:g} s here")
