"""Bug checks: how the emulated kernel stops when kernel code broke a rule.

Rules: raised by kernel code only, never by what a user process sends.
Spec: WDK, Bug Check Code Reference.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

APC_INDEX_MISMATCH: Final = 0x01
IRQL_NOT_LESS_OR_EQUAL: Final = 0x0A
SPIN_LOCK_ALREADY_OWNED: Final = 0x0F
SPIN_LOCK_NOT_OWNED: Final = 0x10
KMODE_EXCEPTION_NOT_HANDLED: Final = 0x1E
NO_MORE_IRP_STACK_LOCATIONS: Final = 0x35
MULTIPLE_IRP_COMPLETE_REQUESTS: Final = 0x44
CANCEL_STATE_IN_COMPLETED_IRP: Final = 0x48
IRQL_GT_ZERO_AT_SYSTEM_SERVICE: Final = 0x4A
PROCESS_HAS_LOCKED_PAGES: Final = 0x76
INVALID_WORK_QUEUE_ITEM: Final = 0x96
ATTEMPTED_SWITCH_FROM_DPC: Final = 0xB8
BAD_POOL_CALLER: Final = 0xC2
DRIVER_VERIFIER_DETECTED_VIOLATION: Final = 0xC4
TIMER_OR_DPC_INVALID: Final = 0xC7
DRIVER_VERIFIER_IOMANAGER_VIOLATION: Final = 0xC9
DRIVER_LEFT_LOCKED_PAGES_IN_PROCESS: Final = 0xCB
DRIVER_IRQL_NOT_LESS_OR_EQUAL: Final = 0xD1
DRIVER_VERIFIER_DMA_VIOLATION: Final = 0xE6
DPC_WATCHDOG_VIOLATION: Final = 0x133
THREAD_TERMINATE_HELD_MUTEX: Final = 0x4000008A

NAMES: Final = {
    value: name for name, value in list(globals().items()) if name.isupper() and name != "NAMES"
}


class BugCheck(BaseException):
    """The machine has stopped.

    Derives from BaseException so that a driver's `except Exception` cannot swallow it.
    `report` holds plain values only and can be printed as JSON.
    """

    def __init__(
        self, code: int, parameters: tuple[int, int, int, int], report: Mapping[str, Any]
    ) -> None:
        self.code = code
        self.name = NAMES.get(code, "UNKNOWN_BUG_CHECK")
        self.parameters = parameters
        self.report: dict[str, Any] = {
            "code": code,
            "name": self.name,
            "parameters": list(parameters),
            **report,
        }
        super().__init__(self.headline())

    def headline(self) -> str:
        """Return code, name, parameters and cause in one line."""
        parameters = ", ".join(f"{value:#x}" for value in self.parameters)
        detail = self.report.get("detail")
        return f"bug check {self.code:#x} {self.name} ({parameters})" + (
            f": {detail}" if detail else ""
        )

    def text(self) -> str:
        """Return the report for people, one fact a line."""
        skip = {"code", "name", "parameters", "detail"}
        facts = (f"  {key}: {value}" for key, value in self.report.items() if key not in skip)
        return "\n".join([f"*** {self.headline()}", *facts])

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        return json.dumps(self.report, default=str)
