"""What a kernel holds for its users, compared with what it held before."""

from typing import Any

from tests.end_to_end.conftest import END_SECONDS
from user_proc.stress.kernel_holdings import everything_held, objects_held, what_is_left

__all__ = ["everything_held", "objects_held", "wait_for_nothing_more"]


def wait_for_nothing_more(kernel: str, before: dict[str, Any]) -> None:
    """Wait until a kernel holds what it held before; fail with the difference."""
    left = what_is_left(kernel, before, END_SECONDS)
    assert not left, f"held before and now: {left}"
