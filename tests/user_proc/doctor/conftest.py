"""A runtime folder of the test's own, short enough for sockets."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The runtime folder `softhca` itself; it does not exist yet."""
    folder = Path(tempfile.mkdtemp(prefix="shd-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder / "softhca"
    shutil.rmtree(folder)
