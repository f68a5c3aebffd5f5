"""The life of the HCA's process: rounds while there is work, then looking, then sleep.

Sleep is announced, and after a full fence everything is looked at once more; so whoever rings
either sees the announcement and pokes, or is seen. Deadlines are slept to within the part that
is spun, since a wake-up is late by more than that.

Spec: docs/hca-process.md; kernel_proc/hca_abi/registers.py.
"""

import contextlib
import gc
import os
import select
import sys
from typing import Final

from kernel_proc.hca.control_socket import ControlEnded, ControlSocket
from kernel_proc.hca.foretelling import Foretelling
from kernel_proc.hca.hca_device import HcaDevice
from kernel_proc.hca.waking_elsewhere import wake_elsewhere
from shared.clock import now_ns
from shared.spin_window import SpinWindow

SPUN_NS: Final = 200_000  # a deadline nearer than this is spun for
LONGEST_SLEEP_NS: Final = 1_000_000_000  # nothing depends on it: whoever rings pokes
_ROUNDS_BETWEEN_LOOKS: Final = 1024  # at the control socket itself
_LOOK_MASK: Final = 15  # every 16th round, whether the kernel says there is something in it
_MOMENT_S: Final = 0.00002
_SWITCH_INTERVAL_S: Final = 0.0002  # how long a copying thread waits to go on, at most
_GARBAGE_WORTH_COLLECTING: Final = 20_000


class ProcessLoop:
    """Runs one device until its control socket ends; `kernel` is the pid of the kernel's process.

    That is the number of the thread, too, that is the kernel's processor.
    """

    def __init__(
        self,
        device: HcaDevice,
        control: ControlSocket,
        watch: select.epoll,
        poke: int,
        kernel: int,
    ) -> None:
        self._device: Final = device
        self._control: Final = control
        self._watch: Final = watch
        self._poke: Final = poke
        self._window: Final = SpinWindow(device.settings.idle_spin_us * 1000)
        self._times: Final = device.times
        self._foretelling: Final = Foretelling(device.tables.events)
        self._told = False
        self._kernel: Final = kernel

    def run(self) -> None:
        """Run until the kernel is gone or says stop."""
        gc.disable()
        gc.freeze()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._device.tables.engine.copier.use_threads(self._wake)
        self._device.set_sleeping(False)
        try:
            while True:
                self._work()
                self._sleep()
        except ControlEnded:
            return

    def _wake(self) -> None:
        """Be woken, by a thread that has done a copy: as by whoever rings."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._poke, 1)

    def _work(self) -> None:
        """Do rounds until there was nothing to do for a while and no deadline is near."""
        device, control, window = self._device, self._control, self._window
        device.tell_processor()  # it may have woken on another one
        idle_since = now_ns()
        rounds = 0
        while True:
            rounds += 1
            if not rounds & _LOOK_MASK:
                device.tell_processor()
                if control.behind or not rounds % _ROUNDS_BETWEEN_LOOKS:
                    control.serve()
                    _collect()
                if control.inspection is not None:
                    control.inspect()
            if device.run_once():
                if idle_since:
                    self._times.looked_ns += max(0, window.yielded_ns - idle_since)
                    idle_since = 0
                continue
            if control.inspection is not None:
                control.inspect()
                idle_since = 0
                continue
            now = now_ns()
            idle_since = idle_since or now
            if device.is_copying:
                self._let_threads_run()
                continue
            if window.is_open(idle_since, now):
                window.yield_core(now)
                continue
            deadline = device.next_deadline_ns()
            if deadline is None or deadline - now >= SPUN_NS:
                self._times.looked_ns += now - idle_since
                return

    def _let_threads_run(self) -> None:
        """Give the interpreter to threads that copy, until one has ended or for a moment."""
        ready, _, _ = select.select([self._watch], [], [], _MOMENT_S)
        if ready:
            self._serve_events()

    def _sleep(self) -> None:
        device = self._device
        if device.dead and not self._told:
            self._told = True
            sys.stderr.write(f"the HCA has failed\n{device.failure}")
            sys.stderr.flush()
        _collect()
        device.set_sleeping(True)
        try:
            if self._control.behind:
                # Here, since what is left of the looking may be too short for its 16th round.
                self._control.serve()
                return
            if device.run_once() or self._control.inspection is not None:
                return
            self._times.sleeps += 1
            self._wait(device.next_deadline_ns())
        finally:
            device.set_sleeping(False)

    def _wait(self, deadline: int | None) -> None:
        begin = now_ns()
        if deadline is None:
            self._serve_events(LONGEST_SLEEP_NS / 1e9, slept=True)
        elif deadline - begin > SPUN_NS // 2:
            length = min(LONGEST_SLEEP_NS, deadline - begin - SPUN_NS // 2)
            # The epoll descriptor is waited for from outside: its own wait counts milliseconds.
            ready, _, _ = select.select([self._watch], [], [], length / 1e9)
            if ready:
                self._serve_events(slept=True)
        self._times.slept_ns += now_ns() - begin

    def _serve_events(self, longest_s: float = 0, *, slept: bool = False) -> None:
        for descriptor, _ in self._watch.poll(longest_s):
            if descriptor == self._control.fileno():
                self._control.serve()
            elif descriptor == self._poke:
                try:
                    os.eventfd_read(descriptor)
                except BlockingIOError:
                    continue
            elif slept and self._foretelling.rung() and self._device.kernel_sleeps:
                self._device.set_kernel_moved(True)
                wake_elsewhere(self._kernel, self._device.wake_kernel)
                self._device.set_kernel_moved(False)


def _collect() -> None:
    """Collect cycles, here and nowhere else, when there may be many."""
    if gc.get_count()[0] > _GARBAGE_WORTH_COLLECTING:
        gc.collect()
