"""Faults in a file: a list of tables named `fault`, each with its point and parameters.

    [[fault]]
    point = "ack-lost"
    every = 10
    queue-pair = 0x405

The same list may stand in files of other kinds beside what else they say.

Rules: any thread. Spec: TOML 1.0.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shared.fault_messages import Fault
from user_proc.faults.fault_values import FaultFileError, parse_fault

KEY: Final = "fault"


def read_faults(mapping: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Return the faults of what a file says, in its order; none if it says nothing of any."""
    tables = mapping.get(KEY, [])
    if not isinstance(tables, list):
        raise FaultFileError(f"'{KEY}' is a list of tables: [[{KEY}]]")
    return tuple(_read(number, table) for number, table in enumerate(tables, 1))


def read_fault_file(path: Path) -> tuple[Fault, ...]:
    """Return the faults of a file that says nothing else."""
    try:
        mapping = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FaultFileError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, or no TOML
        raise FaultFileError(f"{path} is no TOML: {error}") from error
    others = sorted(set(mapping) - {KEY})
    if others:
        raise FaultFileError(f"{path} says {others[0]!r}, which is no list of faults")
    try:
        faults = read_faults(mapping)
    except FaultFileError as error:
        raise FaultFileError(f"{path}: {error}") from None
    if not faults:
        raise FaultFileError(f"{path} has no [[{KEY}]]")
    return faults


def _read(number: int, table: object) -> Fault:
    if not isinstance(table, dict) or not isinstance(table.get("point"), str):
        raise FaultFileError(f"fault {number} names no point")
    values = {word: value for word, value in table.items() if word != "point"}
    try:
        return parse_fault(table["point"], values)
    except FaultFileError as error:
        raise FaultFileError(f"fault {number}: {error}") from None
