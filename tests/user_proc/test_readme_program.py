"""The program in README.md runs when pasted, and prints what README.md says it prints."""

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from user_proc.transport.kernel_starter import start_kernel

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCKS = re.compile(r"^```python\n(.*?)^```\n\n^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def program_and_output() -> tuple[str, str]:
    """Give the program of the section on verbs, and what stands below it."""
    section = README.partition("\n## Verbs\n")[2].partition("\n## ")[0]
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


@pytest.mark.processes
def test_without_a_kernel_it_says_so_in_one_sentence(tmp_path: Path):
    done = run(tmp_path, "readme-nobody")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert "no kernel named 'readme-nobody' is running" in last
