"""Where a run cannot be written is said before the run, in a sentence with a cure."""

from pathlib import Path

import pytest

from user_proc.run_document import require_writable


def test_a_file_is_no_folder_to_write_into(tmp_path: Path):
    file = tmp_path / "run.json"
    file.touch()
    with pytest.raises(NotADirectoryError, match=r"run.json is a file: name a folder"):
        require_writable(str(file / "x"))
    require_writable(str(tmp_path / "x"))
