"""Run a kernel process: `python -P -m kernel_proc --name NAME`.

SIGTERM, SIGINT and SIGHUP stop it in order; SIGUSR1 has it write its state, as JSON, into the
instance's folder.
Exit codes: 0 stopped in order, 1 could not start, 2 wrong command line, 3 bug check, 4 stopped
although a session could not be run down, or a driver not be unloaded, in time.

Rules: signal handlers do nothing; the number arrives on a pipe that the dispatcher reads.
"""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kernel_proc.command_line import StartOptions
    from kernel_proc.machine import Machine
    from kernel_proc.scheduling.bugcheck import BugCheck
    from kernel_proc.server.instance_lock import InstanceLock
    from kernel_proc.server.kernel_log import KernelLog

STOPPED: Final = 0
NOT_STARTED: Final = 1
WRONG_USAGE: Final = 2
BUG_CHECKED: Final = 3
SESSIONS_LEFT: Final = 4

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Starter:
    """Whoever waits to hear that the kernel is ready, or why it is not."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self.knows_why_not = False

    def tell(self, line: str) -> bool:
        """Say one line and hang up; False if there is no starter, or it has gone."""
        if self._descriptor is None:
            return False
        descriptor, self._descriptor = self._descriptor, None
        try:
            os.write(descriptor, line.encode() + b"\n")
            os.close(descriptor)
        except OSError:
            return False
        return True

    def fail(self, sentence: str, code: int) -> int:
        """Say why there will be no kernel; return the exit code."""
        print(f"error: {sentence}", file=sys.stderr)
        self.knows_why_not = self.tell(f"error: {sentence}")
        return code


class Signals:
    """Signals as a descriptor to watch: the system's handler writes the number and returns."""

    def __init__(self, on_stop: Callable[[str], object], on_inspect: Callable[[], object]) -> None:
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._on_stop = on_stop
        self._on_inspect = on_inspect
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_STOP_SIGNALS, signal.SIGUSR1))

    def taken(self) -> None:
        """Act on the signals that have come; called by the dispatcher."""
        try:
            numbers = os.read(self.reader, 64)
        except BlockingIOError:
            return
        for number in numbers:
            if number == signal.SIGUSR1:
                self._on_inspect()
            elif number in _STOP_SIGNALS:
                self._on_stop(signal.Signals(number).name)


def main(arguments: list[str]) -> int:
    """Run until stopped; return the exit code."""
    gc.disable()  # the idle dispatcher collects
    # From the first file on there is somebody who removes it: a signal waits until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP_SIGNALS, signal.SIGUSR1))
    from kernel_proc.command_line import find_ready_fd, parse_command_line
    from kernel_proc.settings import SettingsError

    starter = Starter(find_ready_fd(arguments))
    try:
        options = parse_command_line(arguments)
    except SettingsError as error:
        return starter.fail(str(error), WRONG_USAGE)
    return _run_kernel(options, starter)


def _run_kernel(options: "StartOptions", starter: Starter) -> int:
    """Get the lock and then the log: whoever is refused writes into nobody's files."""
    from kernel_proc.server.instance_lock import InstanceLock
    from kernel_proc.server.kernel_log import KernelLog
    from shared.runtime_folder import RuntimeFolderError

    settings = options.settings
    try:
        lock = InstanceLock(settings.name)
        lock.acquire()
    except RuntimeFolderError as error:
        return starter.fail(str(error), NOT_STARTED)
    log_is_needed = True
    try:
        try:
            log = KernelLog(settings.log, options.take_output)
        except OSError as error:
            return starter.fail(f"cannot write {settings.log}: {error.strerror}", NOT_STARTED)
        if lock.cleared:
            log.line(lock.cleared)
        code = _serve(options, starter, lock, log)
        log_is_needed = (
            settings.log != str(lock.paths.log)
            or not log.began_empty
            or not _everybody_knows(code, options, starter, log)
        )
        return code
    finally:
        lock.release(with_log=not log_is_needed)


def _everybody_knows(
    code: int, options: "StartOptions", starter: Starter, log: "KernelLog"
) -> bool:
    # Whether the log would tell nothing new to anybody.
    if code == STOPPED:
        return options.owner_fd is not None or log.is_uneventful
    return code == NOT_STARTED and starter.knows_why_not


def _serve(
    options: "StartOptions", starter: Starter, lock: "InstanceLock", log: "KernelLog"
) -> int:
    from kernel_proc.driver.hca_child import spawn_hca

    settings = options.settings
    try:
        # Before all that takes long to import, so that it comes up meanwhile.
        child = spawn_hca() if settings.hca else None
    except OSError as error:
        return starter.fail(f"cannot start the HCA: {error.strerror}", NOT_STARTED)

    from kernel_proc.hca_host import HcaNotStarted
    from kernel_proc.io_manager.driver_image import DriverLoadFailed
    from kernel_proc.machine import Machine
    from kernel_proc.scheduling.bugcheck import BugCheck
    from shared.runtime_folder import RuntimeFolderError

    try:
        machine = Machine(settings, log=log, hca_child=child)
    except Exception as error:
        if child is not None:
            child.end()
        return starter.fail(str(error) or type(error).__name__, NOT_STARTED)
    try:
        try:
            machine.open(lock)
            _watch_outside(machine, options.owner_fd)
        except (RuntimeFolderError, DriverLoadFailed, HcaNotStarted) as error:
            return starter.fail(str(error), NOT_STARTED)
        except OSError as error:
            return starter.fail(str(error), NOT_STARTED)
        _watch_processor(machine, lock, log)
        gc.freeze()  # what is there now stays for good
        starter.tell("ready")
        machine.run()
    except BugCheck as stop:
        _report(stop, settings.log, log)
        starter.tell(f"error: {' '.join(stop.headline().split())}")  # if it still waits
        return BUG_CHECKED
    finally:
        machine.close()
    log.line(f"stopped: {machine.stop_reason}")
    return STOPPED if machine.stopped_clean else SESSIONS_LEFT


def _watch_outside(machine: "Machine", owner_fd: int | None) -> None:
    # What may end the kernel: signals, and the end of its owner.
    signals = Signals(machine.request_stop, machine.write_state)
    machine.processor.add_source(signals.reader, signals.taken)
    if owner_fd is None:
        return

    def owner_spoke() -> None:
        if not os.read(owner_fd, 4096):
            machine.processor.remove_source(owner_fd)
            machine.request_stop("its owner has ended")

    machine.processor.add_source(owner_fd, owner_spoke)


def _watch_processor(machine: "Machine", lock: "InstanceLock", log: "KernelLog") -> None:
    from kernel_proc.scheduling.watchdog import Watchdog

    def violated(stop: "BugCheck") -> None:
        # In the watchdog's thread: the stuck one cannot be made to raise anything.
        _report(stop, machine.settings.log, log)
        lock.release()
        os._exit(BUG_CHECKED)

    Watchdog(machine.processor, log.trouble, violated).start()


def _report(stop: "BugCheck", log_path: str | None, log: "KernelLog") -> None:
    """Write a bug check for people to stderr, and as JSON to the log and beside it."""
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(stop.text(), file=sys.stderr, flush=True)
    document = stop.to_json()
    log.trouble(f"bug check: {document}")
    if log_path is not None:
        try:
            with open(log_path + ".bugcheck.json", "w", encoding="utf-8") as file:
                file.write(document + "\n")
        except OSError as error:  # the log has it
            log.trouble(f"bug check not written beside the log: {error}")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was closed already when the process began
            with contextlib.suppress(OSError, ValueError):  # nobody reads it, a driver closed it
                stream.flush()
    # At once: everything is given back, and to take the modules apart would tell nobody anything.
    os._exit(code)
