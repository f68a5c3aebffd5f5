"""complib's mutex over every lock: what it is inside, who waits, and what it refuses."""

from typing import Any

import pytest

from kernel_proc.scheduling.cl_mutex import CL_SUCCESS, COMPLIBS_OWN, KINDS, ClMutex
from kernel_proc.scheduling.irql import APC_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.processor import Deadlock, Processor

RECURSIVE = {"mutex"}
UNKNOWN_TO_THE_VERIFIER = {"mutex", "semaphore", "event"}


def ready(processor: Processor, kind: str) -> ClMutex:
    mutex = ClMutex(processor, kind)
    assert mutex.init() == CL_SUCCESS
    return mutex


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


def test_complibs_own_is_a_fast_mutex(free: Processor):
    assert ClMutex(free).kind == COMPLIBS_OWN == "fast mutex"
    with pytest.raises(KeyError):
        ClMutex(free, "spin lock")


@pytest.mark.parametrize("at_apc_level", [False, True])
@pytest.mark.parametrize("verifier", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_it_tells_the_level_inside(kind: str, verifier: bool, at_apc_level: bool):
    processor = Processor(
        VirtualClock(), verifier=verifier, guarded_mutexes_at_apc_level=at_apc_level
    )
    mutex = ready(processor, kind)
    raises = kind == "fast mutex" or (kind == "guarded mutex" and at_apc_level)

    def body() -> None:
        mutex.acquire()
        assert (processor.irql, mutex.held) == (mutex.irql_inside, 1)
        mutex.release()
        thread = current(processor)
        assert (processor.irql, mutex.held) == (PASSIVE_LEVEL, 0)
        assert (thread.kernel_apc_disable, thread.special_apc_disable) == (0, 0)

    processor.run_thread(body)
    assert mutex.irql_inside == (APC_LEVEL if raises else PASSIVE_LEVEL)


@pytest.mark.parametrize("kind", KINDS)
def test_one_at_a_time_is_inside_in_order_of_arrival(processor: Processor, kind: str):
    mutex, inside, order = ready(processor, kind), list[int](), list[int]()

    def body(number: int) -> None:
        for _ in range(3):
            mutex.acquire()
            inside.append(number)
            order.append(number)
            processor.dispatcher.yield_execution()
            assert inside == [number]
            inside.remove(number)
            mutex.release()

    threads = [create_system_thread(processor, body, number) for number in range(3)]
    processor.run_until(lambda: all(thread.ended for thread in threads))
    assert order == [0, 1, 2] * 3
    assert mutex.held == 0


@pytest.mark.parametrize("kind", KINDS)
def test_taken_once_more_it_counts_or_waits_for_ever(free: Processor, kind: str):
    mutex = ready(free, kind)

    def twice() -> None:
        mutex.acquire()
        mutex.acquire()
        assert mutex.held == 2
        mutex.release()
        mutex.release()

    if kind in RECURSIVE:
        free.run_thread(twice)
        assert mutex.held == 0
    else:
        with pytest.raises(Deadlock, match="waiting for"):
            free.run_thread(twice)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - UNKNOWN_TO_THE_VERIFIER))
def test_verifier_stops_what_is_taken_once_more(checked: Processor, kind: str, stops: Any):
    mutex = ready(checked, kind)

    def twice() -> None:
        mutex.acquire()
        mutex.acquire()

    with stops(0xC4, 0x1000):
        checked.run_thread(twice)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_of_no_use_before_init_and_after_destroy(processor: Processor, kind: str):
    mutex = ClMutex(processor, kind)
    mutex.destroy()  # constructed is enough
    for use in (mutex.acquire, mutex.release):
        with pytest.raises(ValueError, match="not initialised"):
            use()

    def body() -> None:
        mutex.init()
        with pytest.raises(ValueError, match="nobody holds it"):
            mutex.release()
        mutex.acquire()
        with pytest.raises(ValueError, match="while it is held"):
            mutex.destroy()
        mutex.release()
        mutex.destroy()
        with pytest.raises(ValueError, match="is destroyed"):
            mutex.acquire()
        mutex.init()
        mutex.acquire()
        mutex.release()

    processor.run_thread(body)
