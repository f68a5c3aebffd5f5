"""A kernel process with drivers of one's own: the mailbox, right and wrong, and what is refused."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.mailbox_page import ENTRY, WRONG, blocks, driver_source, program_source
from user_proc.errors import KernelStartFailed
from user_proc.transport.kernel_control import kernel_status
from user_proc.transport.kernel_starter import start_kernel

pytestmark = pytest.mark.processes

BUG_CHECKED = 3
Start = Callable[..., Any]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def run_program(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the page's program to its end; it talks to the kernel named "default"."""
    path = write(folder, "use_mailbox.py", program_source())
    return subprocess.run(
        [sys.executable, "-P", str(path)], capture_output=True, text=True, check=False, timeout=30
    )


@pytest.mark.parametrize("options", [(), ("--verifier",)], ids=["free", "verifier"])
def test_the_pages_driver_serves_the_pages_program(
    start: Start, tmp_path: Path, options: tuple[str, ...]
):
    driver = write(tmp_path, "mailbox.py", driver_source())
    kernel = start("--driver", f"{driver}:{ENTRY}", *options, name="default")
    assert kernel.first_words == "ready\n"
    done = run_program(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    (shown,) = kernel.state()["drivers"]
    assert (shown["name"], shown["devices"]) == ("mailbox", ["mailbox"])
    assert kernel.stop() == 0
    assert f"driver 'mailbox' loaded from {driver}, with device 'mailbox'" in kernel.log
    assert "driver 'mailbox' unloaded" in kernel.log


def plain(report: str) -> str:
    """A report without what differs from run to run."""
    report = re.sub(r"0x[0-9a-f]{6,}", "ADDRESS", report)
    report = re.sub(r"(\.py):\d+\)", r"\1)", report)
    report = re.sub(r"\(pid \d+\)", "(pid)", report)
    return re.sub(r"\b(thread|process|session) \d+", r"\1", report).strip()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_ends_the_kernel_with_the_pages_report(
    start: Start, tmp_path: Path, name: str
):
    wrong = WRONG[name]
    driver = write(tmp_path, "mailbox.py", wrong.source())
    kernel = start("--driver", f"{driver}:{ENTRY}", "--verifier", "--no-hca", name="default")
    done = run_program(tmp_path)
    assert kernel.end() == BUG_CHECKED
    if name == "leaks locked pages":  # found when the user has gone
        assert (done.returncode, done.stdout) == (0, "hello\n")
    else:
        last = done.stderr.splitlines()[-1]
        assert last.startswith("user_proc.errors.KernelDied: the kernel 'default' has ended")
    report = kernel.errors()
    assert report.startswith(f"*** bug check {wrong.code:#x} ")
    assert plain(report) in [plain(block) for block in blocks("text")]
    document = json.loads(Path(f"{kernel.log_path}.bugcheck.json").read_text())
    assert document["code"] == wrong.code
    if wrong.first_parameter is not None:
        assert document["parameters"][0] == wrong.first_parameter
    assert not kernel_status("default").running


def test_the_page_shows_each_mistake_and_its_report():
    assert [block.strip() for block in blocks("diff")] == [wrong.diff() for wrong in WRONG.values()]
    assert len(blocks("text")) == len(WRONG)


# Starting with a driver that cannot be loaded


def test_a_driver_that_fails_is_one_sentence_and_no_kernel(start: Start, tmp_path: Path):
    good = write(tmp_path, "mailbox.py", driver_source())
    bad = write(tmp_path, "bad.py", "def driver_entry(driver):\n    return 0xC0000001\n")
    kernel = start("--driver", f"{good}:{ENTRY}", "--driver", f"{bad}:{ENTRY}", name="refused")
    sentence = f"error: the driver '{bad}:{ENTRY}' was not loaded: its entry returned STATUS_"
    assert kernel.first_words.startswith(sentence)
    assert kernel.end() == 1
    assert kernel.errors() == kernel.first_words
    assert "driver 'mailbox' unloaded" in kernel.log
    assert "ready" not in kernel.log
    assert not kernel_status("refused").running


def test_a_bug_check_of_an_entry_reaches_the_starter(tmp_path: Path, runtime_folder: Path):
    bad = write(
        tmp_path, "bad.py", "def driver_entry(driver):\n    driver.processor.bug_check(0x999)\n"
    )
    with pytest.raises(KernelStartFailed, match=r"did not start: bug check 0x999 \S+ \(0x0, "):
        start_kernel("bug-checked", settings={"driver": [f"{bad}:{ENTRY}"]})
    assert not kernel_status("bug-checked").running


def test_modules_and_relative_files_are_found_from_where_one_stands(
    tmp_path: Path, runtime_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "modules"
    folder.mkdir()
    write(folder, "found_by_path.py", driver_source().replace('"mailbox"', '"by_path"'))
    write(tmp_path, "here.py", driver_source())
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.chdir(tmp_path)
    drivers = [f"found_by_path:{ENTRY}", f"here.py:{ENTRY}"]
    with start_kernel("found", settings={"driver": drivers}) as kernel:
        log = kernel.log.read_text()
    assert f"driver 'found_by_path' loaded from {folder}/found_by_path.py" in log
    assert f"driver 'here' loaded from {tmp_path}/here.py" in log


def test_the_current_folder_is_not_on_the_kernels_path(
    tmp_path: Path, runtime_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path, "lonely.py", driver_source())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KernelStartFailed, match="finds no module 'lonely': put its folder into"):
        start_kernel("lost", settings={"driver": [f"lonely:{ENTRY}"]})
