"""DDI rules: routines whose level the verifier checks by a rule of that number."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
)
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.irql import DEVICE_LEVEL, DISPATCH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer

Act = Callable[[Processor], object]

ACTS: dict[str, Act] = {
    "KeResetEvent": lambda processor: Event(processor, notification=True).reset(),
    "KeClearEvent": lambda processor: Event(processor, notification=True).clear(),
    "KeReadStateEvent": lambda processor: Event(processor, notification=True).read_state(),
    "KeSetTimer": lambda processor: Timer(processor).set(1),
    "KeCancelTimer": lambda processor: Timer(processor).cancel(),
    "KeReleaseMutex": lambda processor: Mutex(processor).release(),
}


def at(processor: Processor, level: int, act: Act) -> None:
    processor.raise_irql(level)
    act(processor)
    processor.lower_irql(PASSIVE_LEVEL)


@pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))
def test_c4_20011_above_dispatch_level(checked: Processor, stops: Any, act: Act):
    with stops(DRIVER_VERIFIER_DETECTED_VIOLATION, 0x20011, DEVICE_LEVEL):
        checked.run_thread(at, checked, DEVICE_LEVEL, act)


@pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))
def test_the_free_build_says_0a(free: Processor, stops: Any, act: Act):
    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, DEVICE_LEVEL):
        free.run_thread(at, free, DEVICE_LEVEL, act)


@pytest.mark.parametrize("name", [name for name in ACTS if name != "KeReleaseMutex"])
def test_dispatch_level_is_allowed(processor: Processor, name: str):
    processor.run_thread(at, processor, DISPATCH_LEVEL, ACTS[name])
