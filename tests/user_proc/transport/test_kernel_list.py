"""The list of kernels: one whose folder is unusable keeps no other from being listed."""

from pathlib import Path

import pytest

from shared.connection_file import instance_paths
from user_proc.transport.kernel_control import list_kernels


def test_a_folder_that_is_unusable_is_told_of_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    bad, good = instance_paths("bad"), instance_paths("good")
    for paths in (bad, good):
        paths.folder.mkdir(mode=0o700, parents=True)
        paths.log.touch()
    bad.folder.chmod(0o777)
    found = {status.name: status for status in list_kernels()}
    assert found["good"].state == "ended"
    assert found["bad"].state == "unusable"
    assert str(bad.folder) in str(found["bad"].problem)
