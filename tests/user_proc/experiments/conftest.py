"""What the tests of experiments over the benchmark's rows share."""

from collections.abc import Iterator

import pytest

from user_proc.experiments import row_run


@pytest.fixture(scope="module")
def one_short_round() -> Iterator[None]:
    """A quick run of rows is one round of few operations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(row_run._ROUNDS, True, 1)
        patch.setitem(row_run._BLOCKS, True, 15)  # some of which may be disturbed
        patch.setitem(row_run._OPERATIONS, True, 40)
        patch.setitem(row_run._WARM_UP, True, 5)
        yield
