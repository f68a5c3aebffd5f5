"""Machines in the tests' own process end with their module, as a kernel ends with its process."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_proc.scheduling.dispatcher import Dispatcher


@pytest.fixture(scope="module", autouse=True)
def stacks_given_back() -> Iterator[None]:
    """End the threads of machines in process with their module, so that these can be freed."""
    made: weakref.WeakSet[Dispatcher] = weakref.WeakSet()
    begin = Dispatcher.__init__

    def noted(self: Dispatcher, *arguments: Any) -> None:
        begin(self, *arguments)
        made.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dispatcher, "__init__", noted)
        yield
    for dispatcher in list(made):
        dispatcher.close()
