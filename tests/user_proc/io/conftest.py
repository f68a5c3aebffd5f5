"""One real kernel for the tests of a file, and a fresh connection for each test."""

import uuid
from collections.abc import Iterator

import pytest

from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import StartedKernel, start_kernel


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    with start_kernel(f"io-{uuid.uuid4().hex[:8]}") as started:
        yield started
        assert started.running, started.log.read_text()


@pytest.fixture
def process(kernel: StartedKernel) -> Iterator[UserProcess]:
    with UserProcess.connect(kernel.name) as connected:
        yield connected
