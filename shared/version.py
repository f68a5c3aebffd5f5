"""Which version of SoftHCA this is: the same answer on both sides."""

from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent


def softhca_version() -> str:
    """Return the version of this source tree, else of the installed package."""
    import tomllib  # a user program that never asks does not pay for it
    from importlib import metadata

    project = _ROOT / "pyproject.toml"
    if project.is_file():
        with project.open("rb") as file:
            version = tomllib.load(file).get("project", {}).get("version")
        if isinstance(version, str):
            return version
    try:
        return metadata.version("softhca")
    except metadata.PackageNotFoundError:
        return "unknown"
