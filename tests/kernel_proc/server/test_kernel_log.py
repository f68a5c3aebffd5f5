"""The log: one line an event, and no price for writing where nobody reads."""

import os
import re
import select
from pathlib import Path

import pytest

from kernel_proc.server.kernel_log import KernelLog


def test_lines_are_appended_with_their_time(tmp_path: Path):
    path = tmp_path / "log"
    for text in ("first", "second\nhalf"):
        log = KernelLog(str(path))
        log.line(text)
        log.close()
    first, second = path.read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} first", first)
    assert second.endswith(r" second\nhalf")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_is_cut_before_it_could_be_torn(tmp_path: Path):
    log = KernelLog(str(tmp_path / "log"))
    log.line("é" * 5000)
    log.close()
    written = (tmp_path / "log").read_bytes()
    assert len(written) == select.PIPE_BUF
    assert written.endswith(b"...\n")


def test_where_nobody_reads_lines_are_lost_not_waited_for(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = KernelLog(str(path))
    for _ in range(1000):
        log.line("x" * 1000)
    assert 900 < log.lost_lines < 1000
    log.close()
    os.close(reader)


def test_a_reader_that_left_is_no_error(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = KernelLog(str(path))
    os.close(reader)
    log.line("nobody")
    assert log.lost_lines == 1
    log.close()


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        KernelLog(str(tmp_path / "nowhere" / "log"))


def test_only_ordinary_lines_are_uneventful(tmp_path: Path):
    log = KernelLog(str(tmp_path / "log"))
    assert (log.began_empty, log.is_uneventful) == (True, True)
    log.line("a session came")
    assert log.is_uneventful
    log.trouble("a processor was held")
    assert not log.is_uneventful
    log.close()
    following = KernelLog(str(tmp_path / "log"))
    following.line("ready")
    assert (following.began_empty, following.is_uneventful) == (False, False)
    following.close()


def test_what_others_write_is_no_ordinary_line(tmp_path: Path):
    log = KernelLog(str(tmp_path / "log"))
    with (tmp_path / "log").open("a") as other:
        other.write("printed by a driver\n")
    assert not log.is_uneventful
    log.close()
