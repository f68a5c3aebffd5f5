"""One emulated machine: processor, I/O manager, drivers and the door, put together.

Across processes the machine holds the instance's lock, listens, and runs until it is told to
stop. In process it has no sockets: sessions are handed out by `connect_in_process`.

Rules: dispatcher's OS thread only.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from kernel_proc.clients import benchmark_client
from kernel_proc.devices import fault_control, noop
from kernel_proc.driver.hca_child import HcaChild
from kernel_proc.hca_host import HcaHost
from kernel_proc.io_manager.driver_loader import DriverLoader
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.scheduling.kernel_clock import RealClock, VirtualClock
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.os_lane import InlineLane, Lane, OsLane
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.work_item import stop_service_threads
from kernel_proc.server.connection_gate import ConnectionGate
from kernel_proc.server.descriptor_plan import (
    MOST,
    plan_descriptors,
    raise_descriptor_limit,
)
from kernel_proc.server.in_process import InProcessSession, Outboxes
from kernel_proc.server.instance_lock import InstanceLock
from kernel_proc.server.kernel_log import KernelLog
from kernel_proc.server.lifeline_listener import LifelineListener
from kernel_proc.server.reception import Reception
from kernel_proc.server.request_socket import RequestSocket
from kernel_proc.server.rundown import Rundown
from kernel_proc.server.session import SessionTable
from kernel_proc.server.session_server import SessionServer
from kernel_proc.server.state_text import state_text
from kernel_proc.settings import KernelSettings
from shared.connection_file import own_record, write_record
from shared.envelope import VERSION
from shared.nt_status import STATUS_SUCCESS
from shared.version import softhca_version

_NS_PER_US: Final = 1_000
_NS_PER_MS: Final = 1_000_000
_HCA_LIMIT_NS: Final = 10_000 * _NS_PER_MS  # for an HCA to come up


class Machine:
    """The whole kernel process, or the same without processes.

    `hca` is the host side of the HCA, None when the settings want none. `hca_child` is the HCA's
    process if it was started beforehand.
    """

    def __init__(
        self,
        settings: KernelSettings | None = None,
        in_process: bool = False,
        log: KernelLog | None = None,
        hca_child: HcaChild | None = None,
    ) -> None:
        self.settings = settings = settings or KernelSettings()
        # First of all: what follows takes descriptors, and some of it for good.
        descriptors = raise_descriptor_limit()
        # In process there is no libzmq, and nobody to keep a reserve for.
        self._plan = plan_descriptors(settings, MOST if in_process else descriptors)
        self.in_process = in_process
        self.processor = Processor(
            VirtualClock() if in_process else RealClock(),
            verifier=settings.verifier,
            seed=settings.seed,
            guarded_mutexes_at_apc_level=settings.guarded_mutexes_at_apc_level,
            threaded_dpcs=settings.threaded_dpcs,
        )
        self.processor.dispatcher.idle.window.length_ns = settings.spin_us * _NS_PER_US
        self.io = IoManager(self.processor)
        self.log: Callable[[str], object] = log.line if log is not None else lambda text: None
        self._kernel_log = log
        self.hca = (
            HcaHost(self.io, settings, self._make_lane("kernel memory"), hca_child)
            if settings.hca
            else None
        )
        self.stop_reason = ""
        self._states_asked = 0
        self.stopped_clean = True
        self._outboxes = Outboxes()
        self._gate: ConnectionGate | None = None
        self._requests = None if in_process else RequestSocket()
        send = self._outboxes.send if self._requests is None else self._requests.send
        self.sessions = SessionTable(settings.max_sessions if in_process else self._plan.sessions)
        self.server = SessionServer(self.io, self.sessions, send, settings.max_threads_per_session)
        noop.load(self.io)
        benchmark_client.load(self.io, self.server.wire_bytes)
        self.rundown = Rundown(self.io, self.sessions, self.server, self.log)
        self.reception = Reception(
            self.io,
            settings,
            self.sessions,
            self.rundown,
            self._make_lane,
            self.log,
            self._plan.arenas,
            self.hca.bus if self.hca is not None else None,
        )
        fault_control.load(self.io, self._make_fault_board)
        self._lifelines: LifelineListener | None = None
        self._lock: InstanceLock | None = None
        self.drivers = DriverLoader(self.io, self.log)
        if in_process:
            self.drivers.load_all(settings.driver)

    def _make_lane(self, name: str) -> Lane:
        if self.in_process:
            return InlineLane(self.processor)
        return OsLane(self.processor, name)

    def _make_fault_board(self) -> fault_control.Faults:
        from kernel_proc.fault_board.board import FaultBoard
        from kernel_proc.fault_board.kernel_parts import KernelParts

        parts = KernelParts(self.processor, self.server, self.reception, self._requests, self.hca)
        return FaultBoard(parts, self.log)

    def start_hca(self) -> None:
        """Bring the HCA up, if the settings want one; runs the processor meanwhile.

        HcaNotStarted says why not. Across processes `open` does it.
        """
        if self.hca is not None:
            trouble = self._kernel_log.trouble if self._kernel_log is not None else self.log
            self.hca.start(self.log, trouble, _HCA_LIMIT_NS, in_process=self.in_process)
            self.rundown.doorbells = self.hca.doorbells

    # Across processes

    def open(self, lock: InstanceLock) -> None:
        """Become the kernel of the name whose lock is held: load drivers, listen, publish.

        DriverLoadFailed and HcaNotStarted say why not.
        """
        assert self._requests is not None
        self._lock = lock
        self.start_hca()
        self.drivers.load_all(self.settings.driver)
        requests = self._requests
        requests.receive = self.server.receive
        ready_queue = self.processor.dispatcher.ready_queue
        requests.is_busy = lambda: ready_queue.summary != 0
        paths = lock.paths
        self._gate = ConnectionGate(
            self.sessions.processes,
            str(paths.request_socket),
            self._plan.connections,
            self._plan.strangers,
            self.processor.post,
            self._flooded,
        )
        requests.bind(paths.endpoint, self._gate)
        self.processor.add_source(requests.socket, requests.drain)
        self._lifelines = LifelineListener(
            self.processor,
            self.reception.admit,
            self._make_lane,
            self._plan.silent,
            self.settings.hello_timeout_ms * _NS_PER_MS,
        )
        self._lifelines.listen(lock.paths.lifeline)
        settings = self.settings
        record = own_record(
            settings.name,
            VERSION,
            softhca_version(),
            settings.verifier,
            settings.log or "",
            lock.cleared,
        )
        if settings.hca:
            record = record._replace(
                latency_model=settings.latency_model,
                latency_factor=float(settings.latency_factor),
                hca_profile=settings.hca_profile or "",
            )
        write_record(lock.paths, record)
        self.log(f"kernel {self.settings.name!r} is ready (pid {os.getpid()})")

    def _flooded(self, pid: int) -> None:
        # In the gate's thread.
        def end_sessions() -> None:
            self.log(f"process {pid} floods the request socket: its connections are closed")
            for session in self.sessions:
                if session.process.process_id == pid:
                    self.rundown.begin(session, "it floods the request socket")

        self.processor.post(end_sessions)

    def run(self) -> None:
        """Serve until stopped; a BugCheck leaves through here."""
        try:
            self.processor.run()
        except (Exception, SystemExit) as error:  # a driver cannot end the process by sys.exit
            self.processor.unhandled_exception(error, "a callback of the dispatcher")

    def request_stop(self, reason: str) -> None:
        """Begin an orderly stop: every session is run down first. Dispatcher only."""
        if self.stop_reason:
            return
        self.stop_reason = reason
        self.log(f"stopping: {reason}")
        create_system_thread(self.processor, self._stop, name="stop")

    def _stop(self) -> None:
        if self._lifelines is not None:
            self._lifelines.close()
        for session in self.sessions:
            self.rundown.begin(session, "the kernel stops")
        limit_ns = self.settings.stop_timeout_ms * _NS_PER_MS
        status = self.rundown.none_left.wait(limit_ns)
        if status == STATUS_SUCCESS:
            self.stopped_clean = self.drivers.unload_all(limit_ns)
            if self.hca is not None and not self.hca.stop(limit_ns):
                self.stopped_clean = False
                self.log("stopping although the HCA's driver has not unloaded in time")
        else:
            self.stopped_clean = False
            left = ", ".join(str(session) for session in self.sessions)
            self.log(f"stopping although not run down in time: {left}")
        if not stop_service_threads(self.processor, limit_ns):
            self.stopped_clean = False
            self.log("stopping although a work item or threaded DPC has not ended in time")
        self.processor.stop()

    def close(self) -> None:
        """Give the sockets back, whatever happened; the lock is its owner's.

        In process it gives the threads' stacks back, too, as the process goes on without it.
        """
        if self.in_process:
            self.processor.close()
        if self._lifelines is not None:
            self._lifelines.close()
        if self._requests is not None:
            self.processor.remove_source(self._requests.socket)
            self._requests.close()
        if self.hca is not None:
            self.hca.close()
        self.processor.dispatcher.idle.close()

    # In process

    def connect_in_process(self, name: str = "in-process") -> InProcessSession:
        """Return a session of the calling process, without sockets."""
        return InProcessSession(
            self.processor, self.server, self.reception, self.rundown, self._outboxes, name
        )

    # Looking inside

    def write_state(self) -> None:
        """Have `inspect()` put as JSON into the instance's folder; a thread does it, without haste.

        Who asks meanwhile gets what is so after that: one that was begun before is not written.
        """
        self._states_asked += 1
        if self._states_asked == 1:
            create_system_thread(self.processor, self._write_states, name="state")

    def _write_states(self) -> None:
        while self._states_asked:
            asked = self._states_asked
            text = state_text(self.inspect_all(), self.processor.dispatcher.pause)
            if self._states_asked == asked:
                self._write_state(text)
                self._states_asked = 0

    def _write_state(self, text: str) -> None:
        """Put a text into the state file, in one step."""
        assert self._lock is not None
        path = self._lock.state_path
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(text + "\n", encoding="utf-8")
            temporary.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self.log(f"state not written: {error}")

    def inspect_all(self) -> dict[str, Any]:
        """Return the state of every room and, as "device" of the HCA, what that tells of itself.

        Its figures are of a moment before. Waits: PASSIVE_LEVEL in a kernel thread.
        """
        device = self.hca.inspect_device() if self.hca is not None else {}
        state = self.inspect()
        if device:
            state["hca"]["device"] = device
        return state

    def inspect(self) -> dict[str, Any]:
        """Return the state of every room of the kernel as plain values."""
        return {
            "clock_ns": self.processor.clock.now_ns(),
            "process": os.getpid(),
            "dispatcher": self.processor.dispatcher.inspect(),
            "io_manager": self.io.inspect(),
            "drivers": self.drivers.inspect(),
            "server": self.server.inspect(),
            "hca": self.hca.inspect() if self.hca is not None else {},
            "sessions_opened": self.reception.opened,
            "sessions_run_down": self.rundown.completed,
            "arena_total": self.reception.arena_total.inspect(),
            "arena_places": self.reception.arena_places.inspect(),
            "lifelines": self._lifelines.inspect() if self._lifelines is not None else {},
            "request_sockets": self._gate.inspect() if self._gate is not None else {},
            "socket_errors": dict(self._requests.errors) if self._requests is not None else {},
            "descriptor_plan": self._plan.inspect(),
            "descriptors": len(os.listdir("/proc/self/fd")) - 1,
            "os_threads": threading.active_count(),
        }
