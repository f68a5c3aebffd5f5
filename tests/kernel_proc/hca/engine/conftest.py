"""An HCA whose ports are up, and two connected queue pairs on it."""

import os
from collections.abc import Iterator

import pytest

from tests.kernel_proc.hca.engine.engine_bench import User, engine_bench, pair
from tests.kernel_proc.hca.engine.private_memory import SEGMENT, Gate
from tests.kernel_proc.hca.hca_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return engine_bench()


@pytest.fixture
def ends(bench: Bench) -> tuple[User, User]:
    return pair(bench)


@pytest.fixture
def private_bench(bench: Bench) -> Iterator[Bench]:
    bench.device.add_segment(SEGMENT, None, os.open("/proc/self/mem", os.O_RDWR))
    yield bench
    bench.device.close()


@pytest.fixture
def gate(private_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    private_bench.tables.engine.copier.use_threads(lambda: None)
    yield made
    made.open.set()
