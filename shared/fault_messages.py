"""One fault that is set in a running kernel, as it crosses both borders: to the kernel, to the HCA.

The same message goes from whoever sets it to the kernel, and from the kernel to its HCA if the
fault is the device's. A field that its point does not have is 0 or empty; `fault_points` says which
it has, and what they mean.

Tag 30 is the faults'.
"""

from typing import Any, Final, NamedTuple

from shared.messages import U32, U64, Text


class Fault(NamedTuple):
    """What goes wrong where, and how often.

    Of the calls that fit, the fault takes the `nth`; or each `every`-th; or each with
    `probability` (in millionths, drawn from `seed`); or all; at most `times` of them. `session`,
    `process`, `queue_pair`, `port` and `command` say which calls fit. `time_ns` is how late
    something is, `lasts_ns` for how long the fault is there.
    """

    point: Text
    nth: U32 = 0
    every: U32 = 0
    probability: U32 = 0
    seed: U64 = 0
    times: U32 = 0
    session: U32 = 0
    process: Text = ""
    queue_pair: U32 = 0
    port: U32 = 0
    command: Text = ""
    status: Text = ""
    part: Text = ""
    time_ns: U64 = 0
    lasts_ns: U64 = 0


#: Tag and version of each message.
FAULT_MESSAGES: Final[dict[type[Any], tuple[int, int]]] = {Fault: (30, 1)}
