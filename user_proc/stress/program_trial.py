"""One program of steps at a kernel of its own, with a mate that does nothing but answer.

Rules: bounded in time; nothing of it is left, whatever it found.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final, Self

from shared.clock import now_ns
from user_proc.stress.client_roster import Roster, RosterFailed
from user_proc.stress.findings import DIED, HANG
from user_proc.stress.step_table import Step
from user_proc.stress.stress_kernel import log_end, stress_kernel
from user_proc.stress.stress_settings import StressSettings
from user_proc.transport.kernel_starter import StartedKernel

_LINK_STEPS: Final = ("link", "link settle")
_LOOK_S: Final = 0.02
_PLACES: Final = 2
TRIAL_S: Final = 20.0
_PATIENCE_S: Final = 4.0  # nobody else is there to wait for

Found = dict[str, Any]


class Trials:
    """Programs one after the other at one kernel, which is started again when it has died."""

    def __init__(self, settings: StressSettings) -> None:
        self._settings: Final = settings
        self._stack = ExitStack()
        self._kernel: StartedKernel | None = None
        self.leaks: Final[list[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def _running_kernel(self) -> StartedKernel:
        if self._kernel is None or not self._kernel.running:
            self._stack.close()
            self._stack = ExitStack()
            options = self._settings.kernel_options(_PLACES)
            self._kernel = self._stack.enter_context(
                stress_kernel(options, self.leaks, self._settings.faults)
            )
        return self._kernel

    def run(self, steps: Sequence[Step], seconds: float = TRIAL_S) -> Found | None:
        """Do a program; return what it found: kind, text and step."""
        kernel = self._running_kernel()
        roster = Roster(_PLACES)
        try:
            return self._run(kernel, roster, steps, seconds)
        except RosterFailed:
            if kernel.running:
                raise
            return {"kind": DIED, "text": f"the kernel has ended: {log_end(kernel)}", "step": -1}
        finally:
            roster.close()

    def _run(
        self, kernel: StartedKernel, roster: Roster, steps: Sequence[Step], seconds: float
    ) -> Found | None:
        linked = any(step[0] in _LINK_STEPS for step in steps)
        faulty = bool(self._settings.faults)
        common = {
            "kernel": kernel.name,
            "linked": linked,
            "faulty": faulty,
            "patience_s": _PATIENCE_S,
        }
        if linked:
            roster.start({**common, "place": 1, "steps": [["settle", "nothing"]], "stay": True})
        roster.start({**common, "place": 0, "steps": [list(one) for one in steps]})
        deadline = now_ns() + int(seconds * 1e9)
        while now_ns() < deadline:
            for member in roster.look(_LOOK_S):
                if not kernel.running:
                    text = f"the kernel has ended: {log_end(kernel)}"
                    return {"kind": DIED, "text": text, "step": -1}
                if member.finding is not None:
                    return {name: member.finding[name] for name in ("kind", "text", "step")}
                if not member.as_expected():
                    text = f"the client ended by itself, exit code {member.code}"
                    return {"kind": DIED, "text": text, "step": -1}
                if member.place == 0:
                    return None
        step = roster.counts.read(0)[2]
        return {"kind": HANG, "text": f"not done in {seconds:g} s", "step": step}
