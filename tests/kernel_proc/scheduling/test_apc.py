"""Kernel APCs: when they are delivered, and that a wait keeps its place and deadline."""

from typing import Any

import pytest

from kernel_proc.scheduling.apc import Apc, NormalKernelApc, SpecialKernelApc, UserApc
from kernel_proc.scheduling.bugcheck import (
    APC_INDEX_MISMATCH,
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    IRQL_NOT_LESS_OR_EQUAL,
    KMODE_EXCEPTION_NOT_HANDLED,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.irql import APC_LEVEL, DISPATCH_LEVEL, HIGH_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.kthread import KThread, create_system_thread, create_user_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Deadlock, Processor
from kernel_proc.scheduling.wait import USER_MODE, delay_execution
from shared.nt_status import (
    STATUS_ALERTED,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
    STATUS_TIMEOUT,
)


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


def settle(processor: Processor) -> None:
    """Run until every thread waits."""
    with pytest.raises(Deadlock):
        processor.run_until(lambda: False)


def special(thread: KThread, order: list[Any], name: Any = "apc") -> SpecialKernelApc:
    def routine(apc: Apc) -> None:
        assert thread.processor.current_thread is thread
        assert thread.processor.irql == APC_LEVEL
        assert not apc.inserted
        order.append(name)

    return SpecialKernelApc(thread, routine)


def normal(thread: KThread, order: list[Any]) -> NormalKernelApc:
    processor = thread.processor

    def kernel_routine(apc: Apc) -> None:
        order.append(("kernel", processor.irql))

    def normal_routine(apc: Apc) -> None:
        order.append(("normal", processor.irql))

    return NormalKernelApc(thread, kernel_routine, normal_routine=normal_routine)


NORMAL_RAN = [("kernel", APC_LEVEL), ("normal", PASSIVE_LEVEL)]


# To the running thread


def test_to_oneself_it_runs_at_once_at_apc_level(processor: Processor):
    order: list[Any] = []

    def body() -> None:
        assert special(current(processor), order).insert() is True
        assert order == ["apc"]
        assert processor.irql == PASSIVE_LEVEL
        normal(current(processor), order).insert()
        assert order[1:] == NORMAL_RAN

    processor.run_thread(body)


@pytest.mark.parametrize("level", [APC_LEVEL, DISPATCH_LEVEL])
def test_it_is_held_back_until_the_level_is_passive(processor: Processor, level: int):
    order: list[Any] = []

    def body() -> None:
        processor.raise_irql(level)
        apc = special(current(processor), order)
        assert apc.insert() is True
        assert apc.insert() is False
        processor.lower_irql(APC_LEVEL)
        assert not order
        processor.lower_irql(PASSIVE_LEVEL)
        assert order == ["apc"]

    processor.run_thread(body)


def test_a_fast_mutex_holds_it_back(processor: Processor):
    order: list[Any] = []
    mutex = FastMutex(processor)

    def body() -> None:
        mutex.acquire()
        special(current(processor), order).insert()
        delay_execution(processor, 5)
        assert not order
        mutex.release()
        assert order == ["apc"]

    processor.run_thread(body)


def test_a_guarded_region_holds_back_both_kinds_also_through_a_wait(processor: Processor):
    order: list[Any] = []

    def body() -> None:
        thread = current(processor)
        thread.enter_guarded_region()
        thread.enter_guarded_region()
        assert thread.are_apcs_disabled()
        assert thread.are_all_apcs_disabled()
        assert processor.irql == PASSIVE_LEVEL
        processor.schedule_hardware(special(thread, order).insert)
        normal(thread, order).insert()
        delay_execution(processor, 5)
        thread.leave_guarded_region()
        assert not order
        thread.leave_guarded_region()
        assert order == ["apc", *NORMAL_RAN]

    processor.run_thread(body)


def test_k21_critical_regions_nest_and_hold_back_normal_apcs_only(processor: Processor):
    order: list[Any] = []

    def body() -> None:
        thread = current(processor)
        for count in (-1, -2, -3):
            thread.enter_critical_region()
            assert thread.kernel_apc_disable == count
            assert thread.are_apcs_disabled()
            assert not thread.are_all_apcs_disabled()
            assert processor.irql == PASSIVE_LEVEL
        normal(thread, order).insert()
        special(thread, order).insert()
        assert order == ["apc"]
        for count in (-2, -1, 0):
            assert len(order) == 1
            thread.leave_critical_region()
            assert thread.kernel_apc_disable == count
        assert order == ["apc", *NORMAL_RAN]
        assert not thread.are_apcs_disabled()

    processor.run_thread(body)


def test_a_mutex_holds_back_normal_apcs_only_also_in_a_wait(processor: Processor):
    order: list[Any] = []
    mutex = Mutex(processor)

    def body() -> None:
        thread = current(processor)
        mutex.wait()
        mutex.wait()
        processor.schedule_hardware(normal(thread, order).insert)
        processor.schedule_hardware(special(thread, order).insert)
        delay_execution(processor, 5)
        assert order == ["apc"]
        mutex.release()
        assert order == ["apc"]
        mutex.release()
        assert order == ["apc", *NORMAL_RAN]

    processor.run_thread(body)


def test_special_ones_come_first_and_each_kind_in_order(processor: Processor):
    order: list[Any] = []

    def body() -> None:
        thread = current(processor)
        processor.raise_irql(APC_LEVEL)
        normal(thread, order).insert()
        for name in ("first", "second"):
            special(thread, order, name).insert()
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
    assert order == ["first", "second", *NORMAL_RAN]


def test_a_normal_routine_is_interrupted_by_special_apcs_but_not_by_normal_ones(
    processor: Processor,
):
    order: list[Any] = []

    def body() -> None:
        thread = current(processor)

        def routine(apc: Apc) -> None:
            normal(thread, order).insert()
            special(thread, order).insert()
            delay_execution(processor, 5)
            order.append("routine ends")

        NormalKernelApc(thread, normal_routine=routine).insert()

    processor.run_thread(body)
    assert order == ["apc", "routine ends", *NORMAL_RAN]


def test_removed_it_does_not_run(processor: Processor):
    order: list[Any] = []

    def body() -> None:
        apc = special(current(processor), order)
        assert apc.remove() is False
        processor.raise_irql(APC_LEVEL)
        apc.insert()
        assert apc.remove() is True
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
    assert not order


def test_a_chain_of_apcs_does_not_grow_the_stack(processor: Processor):
    runs: list[int] = []

    def routine(apc: Apc) -> None:
        runs.append(len(runs))
        if len(runs) < 5_000:
            apc.insert()

    processor.run_thread(lambda: SpecialKernelApc(current(processor), routine).insert())
    assert len(runs) == 5_000


def test_an_exception_in_one_does_not_reach_the_code_it_interrupts(
    processor: Processor, stops: Any
):
    def routine(apc: Apc) -> None:
        raise LookupError("lost")

    def body() -> str:
        apc = SpecialKernelApc(current(processor), routine)
        processor.schedule_hardware(apc.insert)
        try:
            delay_execution(processor, 5)
        except LookupError:
            return "swallowed"
        return "unnoticed"

    with stops(KMODE_EXCEPTION_NOT_HANDLED) as caught:
        processor.run_thread(body)
    assert "LookupError left SpecialKernelApc" in caught.value.report["detail"]


def test_inserting_above_dispatch_level_is_a_bug_check(processor: Processor, stops: Any):
    def body() -> None:
        processor.raise_irql(HIGH_LEVEL)
        SpecialKernelApc(current(processor)).insert()

    with stops(IRQL_NOT_LESS_OR_EQUAL, 0, HIGH_LEVEL):
        processor.run_thread(body)


@pytest.mark.parametrize(
    ("act", "sub_code"), [("enter_critical_region", 0x11A), ("leave_critical_region", 0x11B)]
)
def test_critical_regions_above_apc_level(
    processor: Processor, stops: Any, act: str, sub_code: int
):
    def body() -> None:
        processor.raise_irql(DISPATCH_LEVEL)
        getattr(current(processor), act)()

    code = DRIVER_VERIFIER_DETECTED_VIOLATION if processor.verifier else IRQL_NOT_LESS_OR_EQUAL
    with stops(code, sub_code if processor.verifier else 0, DISPATCH_LEVEL):
        processor.run_thread(body)


# To a thread that waits


def test_a_waiting_thread_runs_it_and_waits_again(processor: Processor):
    order: list[Any] = []
    event = Event(processor, notification=False)
    thread = create_system_thread(processor, lambda: order.append(event.wait()))
    settle(processor)
    for count in (1, 2, 3):
        assert special(thread, order).insert() is True
        settle(processor)
        assert order == ["apc"] * count
        assert thread.is_waiting
    event.set()
    processor.run_until(lambda: thread.ended)
    assert order == ["apc"] * 3 + [STATUS_SUCCESS]


@pytest.mark.parametrize("in_dpc", [True, False])
def test_from_a_dpc_or_a_thread(processor: Processor, in_dpc: bool):
    order: list[Any] = []
    thread = create_system_thread(processor, delay_execution, processor, 100, priority=12)
    apc = special(thread, order)
    dpc = Dpc(processor, lambda *_: apc.insert())
    processor.run_thread(dpc.insert if in_dpc else apc.insert)
    assert order == ["apc"]


def test_the_place_in_the_queue_is_kept(processor: Processor):
    order: list[Any] = []
    event = Event(processor, notification=False)

    def waiter(name: str) -> None:
        event.wait()
        order.append(name)

    threads = [create_system_thread(processor, waiter, name) for name in ("first", "second")]
    settle(processor)
    special(threads[0], order).insert()
    settle(processor)
    event.set()
    settle(processor)
    assert order == ["apc", "first"]
    event.set()
    processor.run_until(lambda: threads[1].ended)
    assert order == ["apc", "first", "second"]


def test_the_deadline_is_kept(processor: Processor):
    never = Event(processor, notification=True)
    outcome: list[int] = []

    def waiter() -> None:
        outcome.append(never.wait(1_000))
        outcome.append(processor.clock.now_ns())

    def disturb(thread: KThread) -> None:
        for _ in range(9):
            delay_execution(processor, 100)
            SpecialKernelApc(thread).insert()

    thread = create_system_thread(processor, waiter)
    processor.run_thread(disturb, thread)
    processor.run_until(lambda: thread.ended)
    assert outcome == [STATUS_TIMEOUT, 1_000]


def test_what_it_signals_itself_satisfies_the_wait_it_interrupted(processor: Processor):
    event = Event(processor, notification=False)

    def body() -> int:
        apc = SpecialKernelApc(current(processor), lambda apc: event.set())
        processor.schedule_hardware(apc.insert)
        return event.wait(10)

    assert processor.run_thread(body) == STATUS_SUCCESS
    assert processor.clock.now_ns() == 0


def test_an_object_signalled_while_it_waits_itself_satisfies_the_outer_wait(processor: Processor):
    outer, inner = (Event(processor, notification=False) for _ in range(2))
    order: list[Any] = []

    def routine(apc: Apc) -> None:
        order.append("apc waits")
        inner.wait()
        assert processor.irql == APC_LEVEL
        order.append("apc ends")

    def body() -> None:
        order.append(outer.wait(500))

    thread = create_system_thread(processor, body)
    rival = create_system_thread(processor, lambda: order.append(("rival", outer.wait(50))))
    settle_until_waiting(processor, thread, rival)
    SpecialKernelApc(thread, routine).insert()
    processor.run_until(lambda: bool(order))
    switches = processor.thread_switches
    outer.set()  # goes to `thread`, which is first in the queue, though it is busy in its APC
    processor.run_until(lambda: rival.ended)
    assert order == ["apc waits", ("rival", STATUS_TIMEOUT)]
    assert not thread.ended
    assert processor.thread_switches == switches + 1  # the rival's
    inner.set()
    processor.run_until(lambda: thread.ended)
    assert order[2:] == ["apc ends", STATUS_SUCCESS]
    assert processor.clock.now_ns() == 50


def settle_until_waiting(processor: Processor, *threads: KThread) -> None:
    processor.run_until(lambda: all(thread.is_waiting for thread in threads))


def test_the_outer_wait_times_out_while_the_apc_waits(processor: Processor):
    inner = Event(processor, notification=False)
    outcome: list[int] = []

    def body() -> None:
        outcome.append(Event(processor, notification=True).wait(100))
        outcome.append(processor.clock.now_ns())

    thread = create_system_thread(processor, body)
    settle_until_waiting(processor, thread)
    SpecialKernelApc(thread, lambda apc: inner.wait(300)).insert()
    processor.run_until(lambda: thread.ended)
    assert outcome == [STATUS_TIMEOUT, 300]


def test_apcs_that_come_while_one_waits_are_held_back_until_it_ends(processor: Processor):
    inner = Event(processor, notification=False)
    order: list[Any] = []

    def routine(apc: Apc) -> None:
        inner.wait()
        order.append("long apc")

    thread = create_system_thread(processor, delay_execution, processor, 10**6)
    settle_until_waiting(processor, thread)
    SpecialKernelApc(thread, routine).insert()
    special(thread, order, "later").insert()
    processor.run_until(lambda: not processor.dispatcher.ready_queue.summary)
    assert not order
    inner.set()
    processor.run_until(lambda: len(order) == 2)
    assert order == ["long apc", "later"]


def test_a_wait_at_apc_level_is_not_interrupted(processor: Processor):
    order: list[Any] = []

    def body() -> None:
        processor.raise_irql(APC_LEVEL)
        processor.schedule_hardware(special(current(processor), order).insert)
        switches = processor.thread_switches
        delay_execution(processor, 5)
        assert processor.thread_switches == switches + 1  # it was not even looked at meanwhile
        order.append("waited")
        processor.lower_irql(PASSIVE_LEVEL)

    processor.run_thread(body)
    assert order == ["waited", "apc"]


@pytest.mark.parametrize("act", ["alert", "terminate"])
def test_what_breaks_the_wait_while_the_apc_runs_is_seen_after_it(processor: Processor, act: str):
    never = Event(processor, notification=True)
    thread = create_user_thread(processor, KProcess(processor, "user"), "user")
    statuses: list[int] = []
    thread.enter_kernel(lambda: statuses.append(never.wait(alertable=True, mode=USER_MODE)))
    settle_until_waiting(processor, thread)
    SpecialKernelApc(thread, lambda apc: getattr(thread, act)()).insert()
    processor.run_until(lambda: thread.in_user_mode)
    assert statuses == [{"alert": STATUS_ALERTED, "terminate": STATUS_THREAD_IS_TERMINATING}[act]]
    assert not never.waits


def test_it_pre_empts_by_the_priority_of_its_thread(processor: Processor):
    order: list[Any] = []
    high = create_system_thread(processor, delay_execution, processor, 100, priority=12)
    low = create_system_thread(processor, delay_execution, processor, 100, priority=4)
    settle_until_waiting(processor, high, low)

    def body() -> None:
        special(low, order, "low").insert()
        special(high, order, "high").insert()
        order.append("inserter")

    processor.run_thread(body)
    processor.run_until(lambda: len(order) == 3)
    assert order == ["high", "inserter", "low"]


# To a thread in user mode, ready, ended


def test_a_thread_in_user_mode_runs_it_at_once_on_a_pooled_greenlet(processor: Processor):
    order: list[Any] = []
    thread = create_user_thread(processor, KProcess(processor, "user"), "user", priority=9)
    processor.run_thread(lambda: None)
    pooled = processor.dispatcher.inspect()["pooled_greenlets"]

    def body() -> None:
        special(thread, order).insert()
        assert order == ["apc"]
        normal(thread, order).insert()
        assert order[1:] == NORMAL_RAN
        assert thread.in_user_mode

    processor.run_thread(body)
    # One for the thread that inserted, one for the other: no more were ever needed.
    assert processor.dispatcher.inspect()["pooled_greenlets"] == max(pooled, 2)
    assert thread.in_user_mode
    assert thread.stack is None


def test_from_the_dispatcher_to_a_thread_in_user_mode(processor: Processor):
    order: list[Any] = []
    thread = create_user_thread(processor, KProcess(processor, "user"), "user")
    special(thread, order).insert()
    assert not order  # without a thread on the processor nothing is pre-empted: it is ready
    processor.run_until(lambda: thread.in_user_mode)
    assert order == ["apc"]


def test_one_that_waits_in_user_mode_keeps_services_behind_it(processor: Processor):
    order: list[Any] = []
    event = Event(processor, notification=False)
    thread = create_user_thread(processor, KProcess(processor, "user"), "user")

    def routine(apc: Apc) -> None:
        event.wait()
        order.append("apc")

    SpecialKernelApc(thread, routine).insert()
    thread.enter_kernel(order.append, "service")
    settle(processor)
    assert not order
    event.set()
    processor.run_until(lambda: thread.in_user_mode)
    assert order == ["apc", "service"]


def test_a_new_thread_runs_it_before_its_routine(processor: Processor):
    order: list[Any] = []
    thread = create_system_thread(processor, order.append, "routine")
    special(thread, order).insert()
    processor.run_until(lambda: thread.ended)
    assert order == ["apc", "routine"]


def test_a_ready_thread_runs_it_when_it_gets_the_processor(processor: Processor):
    order: list[Any] = []
    event = Event(processor, notification=False)

    def low() -> None:
        event.wait()
        order.append("low")

    thread = create_system_thread(processor, low, priority=4)
    settle(processor)

    def body() -> None:
        event.set()
        special(thread, order).insert()
        order.append("high")

    processor.run_thread(body)
    processor.run_until(lambda: thread.ended)
    assert order == ["high", "apc", "low"]


def test_a_ready_thread_at_apc_level_runs_it_when_it_lowers(processor: Processor):
    order: list[Any] = []
    event = Event(processor, notification=False)

    def low() -> None:
        processor.raise_irql(APC_LEVEL)
        event.wait()
        order.append("low")
        processor.lower_irql(PASSIVE_LEVEL)
        order.append("low at PASSIVE_LEVEL")

    thread = create_system_thread(processor, low, priority=4)
    settle(processor)
    processor.run_thread(lambda: (event.set(), special(thread, order).insert()))
    processor.run_until(lambda: thread.ended)
    assert order == ["low", "apc", "low at PASSIVE_LEVEL"]


def test_thread_end_runs_down_what_is_queued(processor: Processor):
    order: list[str] = []
    thread = create_user_thread(processor, KProcess(processor, "user"), "user")
    thread.enter_guarded_region()

    def run_down(name: str) -> Any:
        return lambda apc: order.append(name)

    apcs = [
        kind(thread, lambda apc: order.append("ran"), rundown_routine=run_down(kind.__name__))
        for kind in (UserApc, NormalKernelApc, SpecialKernelApc)
    ]
    silent = UserApc(thread)
    for apc in (*apcs, silent):
        assert apc.insert() is True
    thread.leave_guarded_region()  # not running, so nothing is delivered here
    thread.end()
    assert order == ["SpecialKernelApc", "NormalKernelApc", "UserApc"]
    for apc in (*apcs, silent):
        assert apc.insert() is False
    assert len(order) == 3


def test_a_service_that_leaves_apcs_disabled_is_bug_check_01(processor: Processor, stops: Any):
    for enter, parameters in [
        (KThread.enter_critical_region, (0, 0, 1)),
        (KThread.enter_guarded_region, (0, 1, 0)),
        (KThread.leave_critical_region, (0, 0, -1)),
    ]:
        machine = Processor(processor.clock, verifier=processor.verifier)
        thread = create_user_thread(machine, KProcess(machine, "user"), "user")
        thread.enter_kernel(enter, thread)
        with stops(APC_INDEX_MISMATCH, *parameters):
            machine.run_until(lambda thread=thread: thread.in_user_mode)
