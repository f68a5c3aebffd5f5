"""The environment of a Python process that is started: it finds the very packages used here.

Rules: any thread.
"""

import os
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent.parent


def child_environment() -> dict[str, str]:
    """Return this process's environment with the packages' folder first on the path."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{path}" if path else str(_ROOT)
    return environment
