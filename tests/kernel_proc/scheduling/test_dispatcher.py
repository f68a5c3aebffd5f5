"""The loop: idle in process, deadlocks, re-entry, stacks, repeatability."""

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.scheduling.apc import SpecialKernelApc
from kernel_proc.scheduling.dpc import LOW_IMPORTANCE, Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.irql import PASSIVE_LEVEL
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_system_thread, create_user_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Deadlock, Processor
from kernel_proc.scheduling.ready_queue import ReadyQueue
from kernel_proc.scheduling.spinlock import SpinLock
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.wait import delay_execution


class Tracked:
    """Something that can be seen to be gone."""


# In process


def test_run_thread_returns_the_value_or_raises_the_exception(processor: Processor):
    assert processor.run_thread(divmod, 17, 5) == (3, 2)
    with pytest.raises(ZeroDivisionError):
        processor.run_thread(divmod, 1, 0)
    assert processor.run_thread(lambda: processor.irql) == PASSIVE_LEVEL


def test_a_deadlock_names_every_waiting_thread_and_what_it_waits_for(processor: Processor):
    mutex, event = Mutex(processor), Event(processor, notification=False)

    def owner() -> None:
        mutex.wait()
        event.wait()

    create_system_thread(processor, owner, name="owner")
    create_system_thread(processor, mutex.wait, name="second")
    user = create_user_thread(processor, KProcess(processor, "program"), "user")
    user.enter_kernel(user.wait)
    create_user_thread(processor, KProcess(processor, "program"), "in user mode")
    with pytest.raises(Deadlock) as caught:
        processor.run_until(lambda: False)
    assert caught.value.threads == [
        "thread 1 'owner' waiting for Event(state 0)",
        "thread 2 'second' waiting for Mutex(state 0, owner thread 1 'owner')",
        "thread 4 'user' waiting for the end of thread 4 'user'",
    ]
    assert all(line in str(caught.value) for line in caught.value.threads)


def test_a_deadlock_without_threads_says_so(processor: Processor):
    with pytest.raises(Deadlock, match="no thread is waiting"):
        processor.run_until(lambda: False)


def test_a_deadlock_can_be_resolved_from_outside(processor: Processor):
    event = Event(processor, notification=False)
    thread = create_system_thread(processor, event.wait)
    with pytest.raises(Deadlock):
        processor.run_until(lambda: thread.ended)
    processor.post(event.set)
    processor.run_until(lambda: thread.ended)


def test_run_until_stops_as_soon_as_it_holds(processor: Processor):
    steps: list[int] = []

    def body() -> None:
        for number in range(10):
            steps.append(number)
            delay_execution(processor, 10)

    create_system_thread(processor, body)
    processor.run_until(lambda: len(steps) == 3)
    assert processor.clock.now_ns() == 20
    processor.run_until(lambda: True)
    assert steps == [0, 1, 2]


def test_device_models_act_before_time_passes_and_after_the_thread_waits(processor: Processor):
    order: list[str] = []
    event = Event(processor, notification=False)

    def device() -> None:
        order.append("device")
        processor.schedule_hardware(second_step)

    def second_step() -> None:
        order.append("second step")
        event.set()

    def body() -> None:
        processor.schedule_hardware(device)
        order.append("before the wait")
        event.wait(1)
        order.append("after the wait")

    processor.run_thread(body)
    assert order == ["before the wait", "device", "second step", "after the wait"]
    assert processor.clock.now_ns() == 0


def test_hardware_scheduled_by_the_last_dpc_is_not_forgotten(processor: Processor):
    event = Event(processor, notification=False)
    low = Dpc(processor, lambda *_: processor.schedule_hardware(event.set))
    low.importance = LOW_IMPORTANCE
    line = Interrupt(processor, lambda *_: low.insert())
    line.connect()

    def body() -> None:
        processor.schedule_hardware(line.request)
        event.wait()

    processor.run_thread(body)


def test_work_that_is_pending_when_the_loop_starts_is_done(processor: Processor):
    done: list[str] = []
    processor.raise_irql(15)
    Dpc(processor, lambda *_: processor.schedule_hardware(lambda: done.append("dpc"))).insert()
    processor.irql = PASSIVE_LEVEL  # as the dispatcher finds it, without a fall of the level
    processor.run_until(lambda: bool(done))


def test_posted_work_runs_in_order_in_the_dispatcher(processor: Processor):
    order: list[Any] = []
    for number in range(5):
        processor.post(lambda number=number: order.append((number, processor.current_thread)))
    processor.run_until(lambda: len(order) == 5)
    assert order == [(number, None) for number in range(5)]


def test_posted_work_that_posts_again_does_not_keep_threads_waiting(processor: Processor):
    posted: list[int] = []

    def again() -> None:
        posted.append(1)
        processor.post(again)

    processor.post(again)
    processor.run_thread(delay_execution, processor, 0)
    assert len(posted) < 10


def test_stop_ends_run(processor: Processor):
    order: list[str] = []

    def body() -> None:
        order.append("thread")
        processor.stop()
        processor.dispatcher.yield_execution()
        order.append("never")

    create_system_thread(processor, body)
    processor.run()
    assert order == ["thread"]


# Re-entry


def inside_a_thread(processor: Processor, act: Callable[[], object]) -> None:
    processor.run_thread(act)


def inside_a_callback(processor: Processor, act: Callable[[], object]) -> None:
    processor.schedule_hardware(act)
    processor.run_thread(delay_execution, processor, 1)


def inside_a_predicate(processor: Processor, act: Callable[[], object]) -> None:
    processor.run_until(lambda: bool(act()))


@pytest.mark.parametrize("where", [inside_a_thread, inside_a_callback, inside_a_predicate])
@pytest.mark.parametrize("how", ["run", "run_until", "run_thread"])
def test_running_the_dispatcher_from_within_is_refused(processor: Processor, where: Any, how: str):
    def act() -> None:
        {
            "run": processor.run,
            "run_until": lambda: processor.run_until(lambda: False),
            "run_thread": lambda: processor.run_thread(print),
        }[how]()

    with pytest.raises(RuntimeError, match="runs already"):
        where(processor, act)
    assert processor.run_thread(lambda: 5) == 5  # nothing is broken by it


# Stacks


def test_stacks_are_pooled_and_their_number_is_what_was_needed_at_once(processor: Processor):
    for count in (3, 1, 5, 2):
        threads = [
            create_system_thread(processor, delay_execution, processor, 10) for _ in range(count)
        ]
        processor.run_until(lambda threads=threads: all(thread.ended for thread in threads))
    assert processor.dispatcher.inspect()["pooled_greenlets"] == 5
    assert not processor.dispatcher.threads


def test_a_parked_stack_keeps_nothing_alive(processor: Processor):
    gone: list[weakref.ref[Tracked]] = []

    def track() -> Tracked:
        tracked = Tracked()
        gone.append(weakref.ref(tracked))
        return tracked

    def body(argument: Tracked) -> Tracked:
        local = track()
        SpecialKernelApc(created[0], lambda apc: None, track()).insert()
        delay_execution(processor, 1)
        assert local is not argument
        return track()

    created: list[KThread] = []
    gc.disable()  # what goes must go by its reference count
    try:
        created.append(create_system_thread(processor, body, track()))
        processor.run_until(lambda: created[0].ended)
        assert [reference() for reference in gone] == [None] * 4
    finally:
        gc.enable()
    assert processor.dispatcher.inspect()["pooled_greenlets"] == 1


def test_an_ended_thread_is_gone_when_nobody_refers_to_it(processor: Processor):
    def live_and_end() -> "weakref.ref[Tracked]":
        tracked = Tracked()
        thread = create_user_thread(processor, KProcess(processor, "program"), "user")
        thread.irps[tracked] = None
        thread.enter_kernel(delay_execution, processor, 10)
        processor.run_until(lambda: thread.in_user_mode)
        thread.end()
        return weakref.ref(tracked)

    gone = live_and_end()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("waits_again", [False, True])
def test_a_machine_that_is_closed_can_be_freed(waits_again: bool):
    left: list[str] = []

    def wait_for_ever(processor: Processor, kept: Tracked) -> None:
        try:
            Event(processor, notification=True).wait()
        finally:
            left.append(kept.__class__.__name__)
            if waits_again:
                delay_execution(processor, 10)

    def live_and_close() -> "weakref.ref[Tracked]":
        processor, kept = Processor(VirtualClock()), Tracked()
        create_system_thread(processor, wait_for_ever, processor, kept)
        processor.run_thread(lambda: None)
        assert not left
        processor.close()
        return weakref.ref(kept)

    gone = live_and_close()
    gc.collect()
    assert gone() is None
    assert left == ["Tracked"]


def test_no_thread_can_close_the_machine_it_runs_on(processor: Processor):
    with pytest.raises(RuntimeError, match="no thread of it can close it"):
        processor.run_thread(processor.close)


def test_a_deep_stack_of_one_thread_leaves_the_others_their_own(processor: Processor):
    def dive(depth: int) -> int:
        if depth:
            return 1 + dive(depth - 1)
        delay_execution(processor, 10)
        return 0

    depths: list[int] = []
    for _ in range(5):
        create_system_thread(processor, lambda: depths.append(dive(400)))
    processor.run_until(lambda: len(depths) == 5)
    assert depths == [400] * 5


# Repeatability, and switches a seed makes


def race(verifier: bool, seed: int | None) -> list[int]:
    """Have equal threads meet at a spin lock, an event, a fast mutex; note the order."""
    processor = Processor(VirtualClock(), verifier=verifier, seed=seed)
    lock, mutex = SpinLock(processor), FastMutex(processor)
    event = Event(processor, notification=True)
    order: list[int] = []

    def body(number: int) -> None:
        for _ in range(4):
            old = lock.acquire()
            lock.release(old)
            order.append(number)
            event.pulse()
            mutex.acquire()
            event.wait(3 + number)
            mutex.release()

    threads = [create_system_thread(processor, body, number) for number in range(4)]
    processor.run_until(lambda: all(thread.ended for thread in threads))
    return order


def test_without_a_seed_runs_are_all_the_same():
    assert race(False, None) == race(False, None) == race(True, None) == race(False, 1)


def test_a_seed_repeats_its_run_and_other_seeds_differ():
    assert [race(True, seed) for seed in range(5)] == [race(True, seed) for seed in range(5)]
    assert len({tuple(race(True, seed)) for seed in range(10)}) > 3


@pytest.mark.parametrize("act", ["spin lock", "lower_irql", "event"])
def test_a_seed_ends_the_quantum_at_every_kind_of_switch_point(act: str):
    """Unprotected code between two switch points must see an equal thread run, under some seed."""
    torn = 0
    for seed in range(20):
        processor = Processor(VirtualClock(), verifier=True, seed=seed)
        lock, event = SpinLock(processor), Event(processor, notification=False)
        shared_counter = 0

        def switch_point(
            processor: Processor = processor, lock: SpinLock = lock, event: Event = event
        ) -> None:
            if act == "spin lock":
                lock.release(lock.acquire())
            elif act == "lower_irql":
                processor.lower_irql(processor.raise_irql(2))
            else:
                create_system_thread(processor, event.wait)
                event.set()

        def increment(point: Callable[[], None] = switch_point) -> None:
            nonlocal shared_counter
            read = shared_counter
            point()
            shared_counter = read + 1

        threads = [create_system_thread(processor, increment) for _ in range(2)]
        processor.run_until(lambda threads=threads: all(thread.ended for thread in threads))
        torn += shared_counter != 2
    assert 0 < torn < 20


def test_a_level_raised_to_dispatch_protects_against_equal_threads():
    for seed in range(20):
        processor = Processor(VirtualClock(), verifier=True, seed=seed)
        lock = SpinLock(processor)
        counter = 0

        def increment(lock: SpinLock = lock) -> None:
            nonlocal counter
            old = lock.acquire()
            read = counter
            Event(lock.processor, notification=True).set()
            counter = read + 1
            lock.release(old)

        threads = [create_system_thread(processor, increment) for _ in range(3)]
        processor.run_until(lambda threads=threads: all(thread.ended for thread in threads))
        assert counter == 3


# The ready queue


def test_the_ready_queue_agrees_with_a_sorted_list(processor: Processor):
    chance = random.Random(7)
    queue = ReadyQueue()
    expected: list[KThread] = []
    process = KProcess(processor, "program")
    for _ in range(2_000):
        if expected and chance.random() < 0.5:
            best = max(expected, key=lambda thread: thread.priority)  # the first of equals
            assert queue.top_priority() == best.priority
            assert queue.pop() is best
            expected.remove(best)
        else:
            thread = create_user_thread(processor, process, "t", chance.randrange(32))
            if chance.random() < 0.3:
                queue.push_front(thread)
                expected.insert(0, thread)
            else:
                queue.push(thread)
                expected.append(thread)
        assert bool(queue.summary) == bool(expected)
    assert sorted(thread.number for thread in queue) == sorted(t.number for t in expected)


def test_timers_and_threads_take_turns(processor: Processor):
    """A thread that never waits longer than a pass does not keep timers from expiring."""
    expired: list[int] = []
    timer = Timer(processor)
    timer.set(0, dpc=Dpc(processor, lambda *_: expired.append(1)))

    def body() -> int:
        for turns in range(100):
            if expired:
                return turns
            processor.dispatcher.yield_execution()
        return 100

    assert processor.run_thread(body) < 2
