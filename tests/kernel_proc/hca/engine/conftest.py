"""An HCA whose ports are up, and two connected queue pairs on it."""

import pytest

from tests.kernel_proc.hca.engine.engine_bench import User, engine_bench, pair
from tests.kernel_proc.hca.hca_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return engine_bench()


@pytest.fixture
def ends(bench: Bench) -> tuple[User, User]:
    return pair(bench)
