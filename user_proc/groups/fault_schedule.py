"""The faults of a launch: each is set in its kernel when the points it waits for are reached.

Rules: the launcher's one thread, between two steps of its supervisor; so a fault is there before a
group starts that waits for the same points.
"""

from collections.abc import Callable, Sequence
from typing import Final

from user_proc.errors import SofthcaError
from user_proc.faults.fault_control import set_fault
from user_proc.groups.group_plan import PlannedFault, Point
from user_proc.process import UserProcess


class FaultSchedule:
    """Faults that are still to be set."""

    def __init__(
        self, faults: Sequence[PlannedFault], kernel: str, has_reached: Callable[[Point], bool]
    ) -> None:
        self._left: Final = list(faults)
        self._kernel: Final = kernel
        self._has_reached: Final = has_reached

    def set_due(self) -> str:
        """Set what is due; return why a fault could not be set, or nothing."""
        due = [one for one in self._left if all(map(self._has_reached, one.after))]
        if not due:
            return ""
        one = due[0]
        try:
            with UserProcess.connect(self._kernel) as process:
                for one in due:
                    self._left.remove(one)
                    set_fault(process, one.fault)
        except SofthcaError as error:
            return f"the fault {one.fault.point!r} cannot be set: {error}"
        return ""
