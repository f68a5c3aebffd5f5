"""What kernel and HCA import before they serve: each module here was a share of a start."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

LATER = {
    "kernel_proc.__main__, kernel_proc.command_line, kernel_proc.machine": (
        "dataclasses", "hashlib", "inspect", "secrets", "tomllib", "traceback",
        "kernel_proc.clients.timed_operations", "kernel_proc.clients.transfer_client",
        "kernel_proc.clients.verbs_client",
    ),
    "kernel_proc.hca.__main__, kernel_proc.hca.control_socket, kernel_proc.hca.process_loop": (
        "argparse", "dataclasses", "hashlib", "inspect", "random", "tomllib", "traceback",
    ),
}  # fmt: skip


@pytest.mark.parametrize("imported", LATER)
def test_what_few_starts_need_is_imported_when_it_is_needed(imported: str):
    code = f"import sys, {imported}; print(*sorted(sys.modules.keys() & {set(LATER[imported])!r}))"
    found = subprocess.check_output([sys.executable, "-P", "-c", code], text=True)
    assert found.split() == []
