"""A fresh HCA for each test: `bare` as after power-on, `bench` brought up."""

import pytest

from tests.kernel_proc.hca.hca_bench import Bench


@pytest.fixture
def bare() -> Bench:
    return Bench()


@pytest.fixture
def bench() -> Bench:
    return Bench().bring_up()
