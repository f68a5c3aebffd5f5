"""The end of a session: everything its process holds is given back, once, in a fixed order.

No more mail; handles closed and requests cancelled by the I/O manager, and what the drivers held
for the process given back; then its way to the HCA; no page may be left locked; arenas, address
space and lane go last, because drivers may touch the memory until then.
The lane's last errand closes the lifeline: the process's memory is out of reach from then on.

Rules: `begin` at PASSIVE_LEVEL anywhere; the work runs on a system thread and waits.
Spec: WDK: IRP_MJ_CLEANUP, IRP_MJ_CLOSE; bug check 0x76; docs/rundown.md.
"""

from collections.abc import Callable
from typing import Final

from kernel_proc.channel_interface.doorbell_grant import DoorbellIssuer
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.io_manager.system_services import run_down_process
from kernel_proc.memory.mdl import check_no_locked_pages
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.timer import Timer
from kernel_proc.server.session import Session, SessionTable
from kernel_proc.server.session_server import SessionServer

#: After this long a page of the dead process is taken for one that never comes: its file system
#: does not answer. Threads that wait for it get a fault instead.
STUCK_LIMIT_NS: Final = 10_000_000_000


class Rundown:
    """Ends sessions; `idle` is signalled while none is left."""

    def __init__(
        self,
        io: IoManager,
        sessions: SessionTable,
        server: SessionServer,
        log: Callable[[str], object],
    ) -> None:
        self._io = io
        self._sessions = sessions
        self._server = server
        self._log = log
        self.doorbells: DoorbellIssuer | None = None  # set once there is an HCA
        self.completed = 0
        self.none_left = Event(io.processor, notification=True, signaled=True)

    def begin(self, session: Session, reason: str) -> None:
        """End a session; whoever comes second changes nothing."""
        if session.ending:
            return
        self._server.unbind(session)
        if session.lifeline is not None:
            session.lifeline.end()
        # Behind the lifeline: who finds no more completions looks there why.
        session.completions.close()
        name = f"run-down of session {session.number}"
        create_system_thread(self._io.processor, self._run, session, reason, name=name)

    def _run(self, session: Session, reason: str) -> None:
        clock = self._io.processor.clock
        process = session.process
        started_ns = clock.now_ns()
        handles = len(process.handle_table.entries)
        stuck = Timer(process.processor)
        lane = session.lane
        stuck.set(STUCK_LIMIT_NS, dpc=Dpc(process.processor, lambda *_: lane.abandon()))
        run_down_process(self._io, process)
        stuck.cancel()
        if self.doorbells is not None:
            self.doorbells.close(process)
        check_no_locked_pages(process)
        session.arenas.close()
        session.address_space.close()
        if session.lifeline is not None:
            session.lifeline.hang_up()
        session.lane.close()
        if session.peer is not None:
            session.peer.close()
        process.end()
        self._sessions.remove(session)
        self.completed += 1
        elapsed_us = (clock.now_ns() - started_ns) // 1000
        self._log(
            f"{session} ended: {reason}; {_counted(session.requests, 'request')}, "
            f"{_counted(handles, 'handle')} closed, run down in {elapsed_us} us"
        )
        if not len(self._sessions):
            self.none_left.set()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
