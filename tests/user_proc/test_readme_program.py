"""The program in README.md runs when pasted, and prints what README.md says it prints."""

import os
import re
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from user_proc.transport.kernel_starter import start_kernel

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCKS = re.compile(r"^```python\n(.*?)^```\n\n^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def program_and_output(title: str = "Verbs") -> tuple[str, str]:
    """Give the program of a section, and what stands below it."""
    section = README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    ((program, output),) = _BLOCKS.findall(section)
    return str(program), str(output)


def run(folder: Path, kernel: str) -> "subprocess.CompletedProcess[str]":
    """Run the program as its reader would, on the kernel of this name."""
    (folder / "program.py").write_text(program_and_output()[0], encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SOFTHCA_NAME": kernel},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_the_program_is_short():
    assert len(program_and_output()[0].splitlines()) <= 30


@pytest.mark.processes
def test_the_program_of_the_readme_prints_what_the_readme_says(tmp_path: Path):
    name = f"readme-{uuid.uuid4().hex[:8]}"
    with start_kernel(name) as kernel:
        done = run(tmp_path, name)
        log = kernel.log.read_text(encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == program_and_output()[1]
    assert re.search(r"session 1 \('program\.py', pid \d+\) ended: .* 0 handles closed", log)
    assert "closed: " not in log.replace("handles closed", ""), "it left nothing to be freed"


def test_the_program_for_two_terminals_is_short():
    lines = program_and_output("Two programs")[0].splitlines()
    assert len([line for line in lines if line and "import " not in line]) <= 35


@pytest.mark.processes
def test_two_that_run_the_program_send_write_and_read(tmp_path: Path):
    """Both run the same text; what the first prints stands in the README."""
    program, output = program_and_output("Two programs")
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = str(free.getsockname()[1])
    (tmp_path / "pair.py").write_text(program.replace("18600", own), encoding="utf-8")
    name = f"readme-{uuid.uuid4().hex[:8]}"
    with start_kernel(name):
        ends = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "pair.py"],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), "SOFTHCA_NAME": name},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        said = [end.communicate(timeout=50) for end in ends]
    assert [end.returncode for end in ends] == [0, 0], said
    assert sorted(said) == sorted([(output, ""), (output.replace("second", "first"), "")])


@pytest.mark.processes
def test_without_a_kernel_it_says_so_in_one_sentence(tmp_path: Path):
    done = run(tmp_path, "readme-nobody")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert "no kernel named 'readme-nobody' is running" in last
