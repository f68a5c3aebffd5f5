"""The interpreter and the packages: what pyproject.toml asks for, against what is there."""

import platform
import re
import struct
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from user_proc.doctor.check import Check, missing, well

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_OLDEST: Final = (3, 11)
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?")
_POINTER_BYTES: Final = 8


def check_python() -> Check:
    """CPython of the right age, 64 bit, with its lock: live words and threads rely on that."""
    implementation = platform.python_implementation()
    locked = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
    lock = "GIL on" if locked else "GIL off"
    found = f"{implementation} {platform.python_version()}, {lock}, {sys.executable}"
    oldest = ".".join(map(str, _OLDEST))
    if implementation != "CPython" or sys.version_info < _OLDEST:
        return missing("python", found, f"install CPython {oldest} or later, and use that")
    if struct.calcsize("P") != _POINTER_BYTES:
        return missing("python", f"{found}, not 64 bit", "install a 64-bit CPython")
    if not locked:
        return missing("python", found, "use a build with the GIL, or set PYTHON_GIL=1")
    return well("python", found)


def check_packages() -> Check:
    """Every package the project asks for, in the version it asks for."""
    found, lacking = [], []
    for name, least in sorted(requirements()):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            lacking.append((name, least, "is not installed"))
            continue
        found.append(f"{name} {version}")
        if _parts(version) < _parts(least):
            lacking.append((name, least, f"is {version}, older than {least}"))
    if not lacking:
        return well("packages", ", ".join(found))
    wanted = " ".join(f"'{name}>={least}'" if least else name for name, least, _ in lacking)
    return missing(
        "packages",
        "; ".join(f"{name} {why}" for name, _, why in lacking),
        f"run ./scripts/softhca, which sets up .venv by itself, or: pip install {wanted}",
    )


def requirements() -> Iterator[tuple[str, str]]:
    """Give the name and least version of each package this source tree, or package, needs."""
    project = _ROOT / "pyproject.toml"
    if project.is_file():
        with project.open("rb") as file:
            texts = tomllib.load(file)["project"]["dependencies"]
    else:
        texts = [text for text in metadata.requires("softhca") or [] if "extra ==" not in text]
    for text in texts:
        match = _REQUIREMENT.match(text)
        if match is not None:
            yield match[1], match[2] or ""


def _parts(version: str) -> tuple[int, ...]:
    """Return the numbers a version begins with, for comparison."""
    numbers = re.match(r"[0-9.]*", version)
    return tuple(int(part) for part in (numbers[0] if numbers else "").split(".") if part)
