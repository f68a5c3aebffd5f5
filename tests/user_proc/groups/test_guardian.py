"""What the guardian does at its end, in a process that has no other children."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

OVERLOOKED = """
import os, socket, subprocess
from user_proc.groups.guardian import Guardian

class Overlooking(Guardian):
    looks = 0

    def _everything(self):
        self.looks += 1
        return [] if self.looks == 1 else super()._everything()

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
subprocess.Popen(["sleep", "71"]).returncode = 0  # its end is the guardian's to take
guardian = Overlooking(theirs)
ours.close()
guardian.run(os.pipe()[0])
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nobody is left, looks:", guardian.looks > 1)
"""


def test_whom_a_look_overlooks_is_ended_all_the_same():
    """One begun during the look, whose parent has ended before it was looked at."""
    run = subprocess.run(
        [sys.executable, "-P", "-c", OVERLOOKED],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=50,
    )
    assert run.stdout == "nobody is left, looks: True\n"
