"""What faults of a kernel strike, and whom: its sessions by number or by name.

Rules: dispatcher's OS thread.
"""

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kernel_proc.scheduling.kernel_clock import VirtualClock
from shared.fault_messages import Fault

if TYPE_CHECKING:
    from kernel_proc.hca_host import HcaHost
    from kernel_proc.scheduling.process import KProcess
    from kernel_proc.scheduling.processor import Processor
    from kernel_proc.server.reception import Reception
    from kernel_proc.server.request_socket import RequestSocket
    from kernel_proc.server.session import Session
    from kernel_proc.server.session_server import SessionServer

Receive = Callable[[bytes, Sequence[bytes]], None]

_SESSION: Final = struct.Struct("<12xI")  # where a header has its session's number
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class KernelParts:
    """The rooms of one kernel; `requests` is None in process, `hca` where there is no HCA."""

    processor: "Processor"
    server: "SessionServer"
    reception: "Reception"
    requests: "RequestSocket | None"
    hca: "HcaHost | None"

    def hold(self, length_ns: int) -> None:
        """Keep the processor for so long, as a kernel does that is busy with something else."""
        clock = self.processor.clock
        if isinstance(clock, VirtualClock):
            clock.advance_to(clock.now_ns() + length_ns)
        else:
            # The pause is what was asked for: nothing is waited for.
            time.sleep(length_ns / _NS)

    def sender_of(self, frames: Sequence[bytes]) -> "Session | None":
        """Return the session a message says it comes from."""
        if not frames or len(frames[0]) < _SESSION.size:
            return None
        return self.server.sessions.get(_SESSION.unpack_from(frames[0])[0])

    def is_of_caller(self, fault: Fault) -> bool:
        """Tell whether the present thread is one of those a fault is about."""
        thread = self.processor.current_thread
        process = thread.process if thread is not None else None
        if process is None:
            return not (fault.session or fault.process)
        return self.is_of_process(fault, process)

    def is_of_process(self, fault: Fault, process: "KProcess") -> bool:
        """Tell whether a process is one of those a fault is about."""
        return any(one.process is process and names(fault, one) for one in self.server.sessions)


def names(fault: Fault, session: "Session") -> bool:
    """Tell whether a session is one of those a fault is about."""
    return fault.session in (0, session.number) and fault.process in ("", session.process.name)
