"""The run document: one strict JSON text per run, of which tables, CSV and plots are views.

Rules: written after the run, in one piece: a reader finds the old file or the whole new one.
"""

import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SCHEMA_NAME: Final = "softhca-run"
SCHEMA_VERSION: Final = 1
STANDARD_OUTPUT: Final = "-"

#: Whose numbers these are: what every view of a document with times begins with.
HEADING: Final = (
    "Numbers of an emulator in software on this machine: not of hardware, not of Windows."
)

_ALWAYS: Final = ("schema", "kind", "provenance", "settings")
_PARTS: Final = ("floors", "rows")
_OPTIONAL_PARTS: Final = ("stages", "answers", "kernel")

#: The parts of runs that are no benchmark's, by kind: a reader finds all of them.
OTHER_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "experiment": ("experiments",),
    "stress": (
        "seed", "clients", "seconds", "operations", "completions", "lost", "doubled", "corrupt",
        "wrong", "hangs", "kills", "leaks", "control_p99_us", "floor_p99_us", "rows", "counts",
        "failures", "reduced",
    ),
    "doctor": ("checks", "missing", "cleaned"),
    "launch": ("outcome", "groups", "ranks", "samples"),
}  # fmt: skip


class DocumentError(ValueError):
    """A text that is no run document, with the reason in its message."""


@dataclass(frozen=True, slots=True)
class RunDocument:
    """What one run of a tool measured, and everything needed to judge it.

    `stages` are times of the parts of a request, `answers` what the figures say in words, `kernel`
    what starting and keeping one costs; a tool that has none of them leaves them out.
    """

    kind: str
    provenance: Mapping[str, Any]
    settings: Mapping[str, Any]
    floors: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    stages: Sequence[Mapping[str, Any]] | None = None
    answers: Sequence[Mapping[str, Any]] | None = None
    kernel: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the document as JSON values, parts in the documented order."""
        parts: dict[str, Any] = {
            **_head(self.kind, self.provenance, self.settings),
            "floors": [dict(floor) for floor in self.floors],
            "rows": [dict(row) for row in self.rows],
        }
        for name, members in (("stages", self.stages), ("answers", self.answers)):
            if members is not None:
                parts[name] = [dict(member) for member in members]
        if self.kernel is not None:
            parts["kernel"] = dict(self.kernel)
        return parts

    def as_json(self) -> str:
        """Return the document as strict JSON text."""
        return dump_strict(self.as_dict())


def _head(kind: str, provenance: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": {"name": SCHEMA_NAME, "version": SCHEMA_VERSION},
        "kind": kind,
        "provenance": dict(provenance),
        "settings": dict(settings),
    }


def other_document(
    kind: str,
    provenance: Mapping[str, Any],
    settings: Mapping[str, Any],
    parts: Mapping[str, Any],
) -> str:
    """Return a run that is no benchmark's as strict JSON text; its parts are those of its kind."""
    _require_parts(parts, OTHER_PARTS[kind])
    return dump_strict({**_head(kind, provenance, settings), **parts})


def dump_strict(value: Any) -> str:
    """Return `value` as JSON that any strict reader takes: no NaN, no infinity, text keys."""
    _refuse_loose(value, "document")
    return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1) + "\n"


def _refuse_loose(value: Any, where: str) -> None:
    """Raise for what `json.dumps` would silently turn into something else."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            if not isinstance(key, str):
                raise DocumentError(f"{where} has a key that is no text: {key!r}")
            _refuse_loose(member, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            _refuse_loose(member, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise DocumentError(f"{where} is not a finite number")


def load_strict(text: str) -> dict[str, Any]:
    """Return the parts of a run document; refuse NaN, doubled keys, missing or unknown parts."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except DocumentError:
        raise
    except ValueError as error:
        raise DocumentError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DocumentError("a run document is a JSON object")
    kind = value.get("kind")
    parts = OTHER_PARTS.get(kind) if isinstance(kind, str) else None
    if parts is None:
        _require_parts(value, (*_ALWAYS, *_PARTS), _OPTIONAL_PARTS)
    else:
        _require_parts(value, (*_ALWAYS, *parts))
    if value["schema"] != {"name": SCHEMA_NAME, "version": SCHEMA_VERSION}:
        raise DocumentError(f"this reader knows {SCHEMA_NAME} version {SCHEMA_VERSION} only")
    return value


def _require_parts(
    value: Mapping[str, Any], parts: Sequence[str], optional: Sequence[str] = ()
) -> None:
    missing = [part for part in parts if part not in value]
    unknown = sorted(set(value) - set(parts) - set(optional))
    if missing or unknown:
        raise DocumentError(f"parts missing: {missing}, parts unknown: {unknown}")


def _refuse_constant(name: str) -> Any:
    raise DocumentError(f"{name} is no JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise DocumentError("an object has the same key twice")
    return members


def write_text(destination: str, text: str) -> None:
    """Write `text` to standard output for `-`, else replace the file in one step."""
    if destination == STANDARD_OUTPUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(destination)
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")  # a pipe or terminal: nothing to replace
        return
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return the mask for new files: reading it means setting it, so it is put back at once."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def require_writable(destination: str) -> None:
    """Raise OSError now when a text could not be written to `destination` after the run."""
    if destination == STANDARD_OUTPUT:
        return
    target = Path(destination)
    if target.is_dir():
        raise IsADirectoryError(f"{destination} is a folder")
    if target.parent.exists() and not target.parent.is_dir():
        raise NotADirectoryError(f"{target.parent} is a file: name a folder, or another file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist")
    probe = target if target.exists() else target.parent
    if not os.access(probe, os.W_OK):
        raise PermissionError(f"{probe} is not writable")
