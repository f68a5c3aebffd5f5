"""The machine the driver's tests use."""

from collections.abc import Iterator

import pytest

from tests.driver.hca_box import HcaBox, HcaSession


@pytest.fixture
def box() -> Iterator[HcaBox]:
    with HcaBox() as machine:
        yield machine


@pytest.fixture
def session(box: HcaBox) -> HcaSession:
    return box.session()
