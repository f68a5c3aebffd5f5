"""The list of kernels: one whose folder is unusable keeps no other from being listed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.connection_file import instance_paths
from user_proc.errors import SofthcaError
from user_proc.transport.kernel_control import list_kernels


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of its own, with a path so short that sockets fit into it."""
    with tempfile.TemporaryDirectory(prefix="she-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def test_a_folder_that_is_unusable_is_told_of_among_the_others(runtime: Path):
    bad, good = instance_paths("bad"), instance_paths("good")
    assert runtime in bad.folder.parents
    bad.folder.parent.mkdir(mode=0o700)
    for paths in (bad, good):
        paths.folder.mkdir(mode=0o700)
        paths.log.touch()
    bad.folder.chmod(0o777)
    found = {status.name: status for status in list_kernels()}
    assert found["good"].state == "ended"
    assert found["bad"].state == "unusable"
    assert str(bad.folder) in str(found["bad"].problem)


def test_no_folder_at_all_is_no_kernels(runtime: Path):
    assert list_kernels() == []


@pytest.mark.parametrize("kind", ["open to other users", "not a folder"])
def test_a_root_that_is_unusable_is_told_of_instead(runtime: Path, kind: str):
    """No kernel can be reached in it, so there is nothing to list; the sentence has the cure."""
    root = instance_paths("any").folder.parent
    if kind == "not a folder":
        root.touch()
    else:
        root.mkdir()
        root.chmod(0o777)
    with pytest.raises(SofthcaError, match=kind) as caught:
        list_kernels()
    assert str(root) in str(caught.value)
