"""The driver and the program of docs/writing-a-driver.md, and the driver's six wrong variants."""

import re
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "writing-a-driver.md"
ENTRY: Final = "driver_entry"


def blocks(language: str) -> list[str]:
    """The page's code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def driver_source() -> str:
    return blocks("python")[0]


def program_source() -> str:
    return blocks("python")[1]


class Wrong(NamedTuple):
    """A line of the driver, what a careless author puts there, and the bug check it ends in."""

    line: str
    put: str
    code: int
    first_parameter: int | None  # None: an address, or nothing that matters
    free_code: int | None  # without the verifier; None: the machine goes on

    def source(self) -> str:
        right = driver_source().splitlines()
        (number,) = (n for n, line in enumerate(right) if line.strip() == self.line)
        indentation = right[number].removesuffix(self.line)
        wrong = [indentation + line for line in self.put.splitlines()]
        return "\n".join([*right[:number], *wrong, *right[number + 1 :], ""])

    def diff(self) -> str:
        """The edit as the page shows it."""
        return "\n".join([f"- {self.line}", *(f"+ {line}" for line in self.put.splitlines())])


WRONG: Final = {
    "completes twice": Wrong(
        "wdm.finish_request(irp, wdm.STATUS_SUCCESS, len(letter))",
        "wdm.finish_request(irp, wdm.STATUS_SUCCESS, len(letter))\n"
        "wdm.finish_request(irp, wdm.STATUS_SUCCESS, len(letter))",
        0x44,
        None,
        0x44,
    ),
    "touches a user pointer from a DPC": Wrong(
        "irp.system_buffer[: len(letter)] = letter",
        "wdm.write_user_buffer(irp, irp.user_buffer, letter)",
        0x0A,
        None,
        0x0A,
    ),
    "waits at DISPATCH_LEVEL": Wrong(
        "readers.insert(irp)  # marks it pending; from here it is not ours",
        "irql = readers.lock.acquire()\n"
        "wdm.delay_execution(device.processor, 1_000_000)\n"
        "readers.lock.release(irql)",
        0xC4,
        0x122,
        0x0A,
    ),
    "forgets to mark pending": Wrong(
        "readers.insert(irp)  # marks it pending; from here it is not ours",
        "readers.insert_irp(irp)",
        0xC9,
        0x23D,
        None,
    ),
    "leaks locked pages": Wrong(
        "letters.append(wdm.read_user_buffer(irp, location.type3_input_buffer, length))",
        "mdl = wdm.allocate_mdl(device.processor, location.type3_input_buffer, length)\n"
        "wdm.probe_and_lock_pages(mdl, wdm.USER_MODE, wdm.IO_READ_ACCESS)\n"
        "letters.append(wdm.map_locked_pages(mdl).read(0, length))",
        0xCB,
        None,
        0x76,
    ),
    "forwards with a cancel routine set": Wrong(
        "readers.insert(irp)  # marks it pending; from here it is not ours",
        "wdm.set_cancel_routine(irp, lambda *_: wdm.finish_request(irp, wdm.STATUS_CANCELLED))\n"
        "wdm.skip_current_irp_stack_location(irp)\n"
        'return wdm.call_driver(device.io.devices["noop"], irp)',
        0xC9,
        0x203,
        None,
    ),
}
