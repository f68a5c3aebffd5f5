"""Threads that can never wake: found, named with their locks, and told of once."""

from collections.abc import Callable
from typing import Any

import pytest

from kernel_proc.scheduling.apc import NormalKernelApc, SpecialKernelApc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.guarded_mutex import GuardedMutex
from kernel_proc.scheduling.irql import APC_LEVEL
from kernel_proc.scheduling.kthread import KThread, create_system_thread
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.processor import Deadlock, Processor
from kernel_proc.scheduling.stuck_threads import StuckWatch, describe_stuck
from kernel_proc.scheduling.wait import USER_MODE, wait_for_multiple
from kernel_proc.scheduling.watchdog import Watchdog

MILLISECOND = 1_000_000


class Request:
    """What the I/O manager's requests carry: the objects their completion APC signals."""

    def __init__(self, name: str, event: Event | None = None, file: Any = None) -> None:
        self.name = name
        self.user_event = event
        self.file_object = file
        self.inserted = False

    def __str__(self) -> str:
        return f"IRP {self.name}"


class File:
    def __init__(self, event: Event) -> None:
        self.event = event


def current(processor: Processor) -> KThread:
    thread = processor.current_thread
    assert thread is not None
    return thread


def start(processor: Processor, routine: Callable[[], object], name: str = "stuck") -> KThread:
    """Run `routine` in a thread until it waits."""
    thread = create_system_thread(processor, routine, name=name)
    processor.run_until(lambda: thread.is_waiting or thread.ended)
    return thread


def keep_apc(processor: Processor) -> None:
    """Queue an APC to the calling thread that it cannot run."""

    def deliver(apc: object) -> None:
        raise AssertionError("it is held back")

    SpecialKernelApc(current(processor), deliver).insert()


# Each returns how the place is described, and what must live as long as the wait.

Hold = tuple[str, object]


def in_fast_mutex(processor: Processor) -> Hold:
    mutex = FastMutex(processor, "commands")
    mutex.acquire()
    return "at APC_LEVEL, holding fast mutex 'commands'", mutex


def in_raised_level(processor: Processor) -> Hold:
    processor.raise_irql(APC_LEVEL)
    return "at APC_LEVEL,", None


def in_guarded_region(processor: Processor) -> Hold:
    current(processor).enter_guarded_region()
    return "in a guarded region,", None


def in_guarded_mutex_2003(processor: Processor) -> Hold:
    mutex = GuardedMutex(processor, "tables")
    mutex.acquire()
    return "in a guarded region, holding guarded mutex 'tables'", mutex


def in_guarded_mutex_windows_8(processor: Processor) -> Hold:
    processor.guarded_mutexes_at_apc_level = True
    mutex = GuardedMutex(processor, "tables")
    mutex.acquire()
    return "at APC_LEVEL, holding guarded mutex 'tables'", mutex


HOLDS = [
    in_fast_mutex,
    in_raised_level,
    in_guarded_region,
    in_guarded_mutex_2003,
    in_guarded_mutex_windows_8,
]


def in_nothing(processor: Processor) -> None:
    """Hold nothing."""


def in_mutex(processor: Processor) -> None:
    Mutex(processor).wait()


def in_critical_region(processor: Processor) -> None:
    current(processor).enter_critical_region()


def in_unsafe_fast_mutex(processor: Processor) -> None:
    current(processor).enter_critical_region()
    FastMutex(processor).acquire_unsafe()


HARMLESS = [in_nothing, in_mutex, in_critical_region, in_unsafe_fast_mutex]


@pytest.mark.parametrize("hold", HOLDS)
def test_who_waits_for_a_request_of_its_own_can_never_wake(processor: Processor, hold: Any):
    event = Event(processor, notification=True)
    holds: list[Hold] = []

    def body() -> None:
        current(processor).irps[Request("1", event)] = None
        holds.append(hold(processor))
        event.wait()

    thread = start(processor, body)
    text = describe_stuck(thread)
    assert text is not None
    assert text.startswith(f"{thread} can never wake: {holds[0][0]}")
    assert text.endswith("its completion APC cannot run, and it waits for IRP 1")


@pytest.mark.parametrize("hold", HARMLESS)
def test_who_can_run_the_apc_is_not_stuck(processor: Processor, hold: Any):
    event = Event(processor, notification=True)

    def body() -> None:
        current(processor).irps[Request("1", event)] = None
        hold(processor)
        event.wait()

    assert describe_stuck(start(processor, body)) is None


def test_a_request_that_has_ended_already_is_marked(processor: Processor):
    event = Event(processor, notification=True)
    request = Request("1", event)

    def body() -> None:
        current(processor).irps[request] = None
        in_fast_mutex(processor)
        event.wait()

    thread = start(processor, body)
    request.inserted = True
    text = describe_stuck(thread)
    assert text is not None
    assert text.endswith("waits for IRP 1 (completed)")


def test_a_request_without_event_signals_its_file(processor: Processor):
    file = File(Event(processor, notification=True))

    def body() -> None:
        current(processor).irps[Request("1", None, file)] = None
        in_fast_mutex(processor)
        file.event.wait()

    text = describe_stuck(start(processor, body))
    assert text is not None
    assert "waits for IRP 1" in text


@pytest.mark.parametrize(
    ("wait_all", "requested", "stuck"),
    [
        (True, [0], True),  # one of all that never comes is enough
        (True, [0, 1], True),
        (False, [0], False),  # the other may come
        (False, [0, 1], True),
        (True, [], False),
    ],
)
def test_with_several_objects_it_depends_on_what_the_wait_needs(
    processor: Processor, wait_all: bool, requested: list[int], stuck: bool
):
    events = [Event(processor, notification=True) for _ in range(2)]

    def body() -> None:
        for number in requested:
            current(processor).irps[Request(str(number), events[number])] = None
        in_fast_mutex(processor)
        wait_for_multiple(events, wait_all)

    text = describe_stuck(start(processor, body))
    assert (text is not None) is stuck
    for number in requested if stuck else ():
        assert f"IRP {number}" in str(text)


def test_with_a_time_limit_it_will_wake(processor: Processor):
    event = Event(processor, notification=True)

    def body() -> None:
        current(processor).irps[Request("1", event)] = None
        in_fast_mutex(processor)
        event.wait(100)
        processor.lower_irql(0)

    assert describe_stuck(start(processor, body)) is None


@pytest.mark.parametrize("how", [{"alertable": True}, {"mode": USER_MODE}])
def test_a_wait_that_can_be_broken_off_may_never_wake(processor: Processor, how: Any):
    event = Event(processor, notification=True)

    def body() -> None:
        current(processor).irps[Request("1", event)] = None
        in_fast_mutex(processor)
        event.wait(**how)

    text = describe_stuck(start(processor, body))
    assert text is not None
    assert "may never wake" in text


def test_an_apc_nobody_knows_the_purpose_of_makes_it_likely(processor: Processor):
    kept: list[FastMutex] = []

    def hold() -> None:
        for name in ("b", "a"):
            kept.append(FastMutex(processor, name))
            kept[-1].acquire()
        keep_apc(processor)
        Event(processor, notification=True).wait()

    text = describe_stuck(start(processor, hold))
    assert text is not None
    assert "may never wake: at APC_LEVEL, holding fast mutex 'a', fast mutex 'b'," in text
    assert text.endswith("queued special kernel APCs cannot run: keep_apc.<locals>.deliver")


def test_normal_kernel_apcs_alone_are_no_sign(processor: Processor):
    def body() -> None:
        in_fast_mutex(processor)
        NormalKernelApc(current(processor), lambda apc: None).insert()
        Event(processor, notification=True).wait()

    assert describe_stuck(start(processor, body)) is None


def test_who_does_not_wait_is_not_stuck(processor: Processor):
    seen: list[str | None] = []

    def body() -> None:
        in_guarded_region(processor)
        keep_apc(processor)
        seen.append(describe_stuck(current(processor)))
        current(processor).special_apcs[0].remove()
        current(processor).leave_guarded_region()

    thread = create_system_thread(processor, body)
    assert describe_stuck(thread) is None
    processor.run_until(lambda: thread.ended)
    assert seen == [None]
    assert describe_stuck(thread) is None


def test_once_satisfied_it_is_not_stuck_though_it_did_not_run_yet(processor: Processor):
    event = Event(processor, notification=True)

    def body() -> None:
        in_fast_mutex(processor)
        keep_apc(processor)
        event.wait()

    thread = start(processor, body)
    assert describe_stuck(thread) is not None
    event.set()
    assert describe_stuck(thread) is None


def stuck_body(processor: Processor, event: Event) -> Callable[[], None]:
    def body() -> None:
        mutex = FastMutex(processor, "commands")
        mutex.acquire()
        keep_apc(processor)
        event.wait()
        current(processor).special_apcs[0].remove()
        mutex.release()

    return body


def test_the_deadlock_says_why(processor: Processor):
    event = Event(processor, notification=True)
    thread = start(processor, stuck_body(processor, event))
    with pytest.raises(Deadlock) as caught:
        processor.run_thread(Event(processor, notification=True).wait)
    stuck, other = caught.value.threads
    assert stuck.startswith(f"{thread} waiting for Event(state 0), at APC_LEVEL, which holds back")
    assert "; it may never wake: at APC_LEVEL, holding fast mutex 'commands'" in stuck
    assert "never" not in other


def test_the_dispatcher_shows_them(processor: Processor):
    event = Event(processor, notification=True)
    thread = start(processor, stuck_body(processor, event))
    assert processor.dispatcher.inspect()["stuck"] == [describe_stuck(thread)]
    event.set()
    processor.run_until(lambda: thread.ended)
    assert processor.dispatcher.inspect()["stuck"] == []


# Watching a machine that runs


def test_two_looks_make_a_report_and_a_third_no_second(processor: Processor):
    event = Event(processor, notification=False)
    watch = StuckWatch()
    threads = [start(processor, stuck_body(processor, event)) for _ in range(2)]
    assert watch.look(threads) == []
    assert watch.look(threads) == [describe_stuck(thread) for thread in threads]
    assert watch.look(threads) == []
    event.set()
    processor.run_until(lambda: threads[0].ended)
    assert watch.look(threads) == []
    again = start(processor, stuck_body(processor, event))
    assert watch.look([again]) == []
    assert watch.look([again]) == [describe_stuck(again)]


def test_another_wait_of_the_same_thread_is_watched_anew(processor: Processor):
    event = Event(processor, notification=False)
    watch = StuckWatch()

    def body() -> None:
        in_fast_mutex(processor)
        keep_apc(processor)
        for _ in range(3):
            event.wait()

    thread = start(processor, body)
    for _ in range(2):
        assert watch.look([thread]) == []
        event.set()
        processor.run_until(lambda: thread.is_waiting)
    assert watch.look([thread]) == []
    assert len(watch.look([thread])) == 1


class Look:
    """Waits in a kernel thread of a real machine until the watchdog has said something."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.heard: list[str] = []
        self.told = Event(processor, notification=True)
        self.watchdog = Watchdog(processor, self.hear, self.heard.append, 20 * MILLISECOND)

    def hear(self, text: str) -> None:
        self.heard.append(text)
        self.processor.post(self.told.set)

    def run(self) -> None:
        self.watchdog.start()
        self.processor.run_thread(self.told.wait, 5_000 * MILLISECOND)
        self.watchdog.stop()


def test_the_watchdog_reports_a_stuck_thread_of_an_idle_machine(real: Processor):
    thread = start(real, stuck_body(real, Event(real, notification=True)))
    look = Look(real)
    look.run()
    assert look.heard == [describe_stuck(thread)]


def test_a_table_that_changes_under_the_watchdog_is_looked_at_again(
    real: Processor, monkeypatch: pytest.MonkeyPatch
):
    thread = start(real, stuck_body(real, Event(real, notification=True)))
    looks: list[int] = []
    look_at = StuckWatch.look

    def changing(self: StuckWatch, threads: Any) -> list[str]:
        looks.append(len(looks))
        if len(looks) == 2:
            raise RuntimeError("Set changed size during iteration")
        return look_at(self, threads)

    monkeypatch.setattr(StuckWatch, "look", changing)
    look = Look(real)
    look.run()
    assert look.heard == [describe_stuck(thread)]
    assert len(looks) >= 3
