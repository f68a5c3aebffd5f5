"""The real sleep: timers, posted work, descriptors, sockets; and that it costs nothing."""

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from kernel_proc.scheduling.dispatcher import LOOK_EVERY_NS
from kernel_proc.scheduling.dpc import LOW_IMPORTANCE, Dpc
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.kernel_clock import RealClock, VirtualClock
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.processor import Processor
from kernel_proc.scheduling.timer import Timer
from kernel_proc.scheduling.timer_descriptor import TimerDescriptor
from kernel_proc.scheduling.wait import delay_execution
from shared.clock import now_ns
from shared.nt_status import STATUS_TIMEOUT
from shared.spin_window import SpinWindow

MILLISECOND = 1_000_000

Record = Callable[[str, object], None]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):  # a test may have closed it
            os.close(end)


def in_threads(count: int, routine: Callable[[int], object]) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=routine, args=(number,), daemon=True) for number in range(count)
    ]
    for thread in threads:
        thread.start()
    return threads


# Time


def test_waits_and_delays_last_at_least_as_long_as_asked(real: Processor, record_property: Record):
    never = Event(real, notification=True)

    def body(asked: int) -> int:
        start = now_ns()
        assert never.wait(asked) == STATUS_TIMEOUT
        delay_execution(real, asked)
        return (now_ns() - start) // 2

    for asked in (10_000, MILLISECOND, 5 * MILLISECOND):
        achieved = real.run_thread(body, asked)
        record_property(f"asked {asked} ns, achieved", achieved)
        assert achieved >= asked


def test_a_timer_expires_through_the_descriptor(real: Processor, record_property: Record):
    times: list[int] = []
    dpc = Dpc(real, lambda *_: times.append(now_ns()))
    timer = Timer(real)
    start = now_ns()
    timer.set(3 * MILLISECOND, dpc=dpc)
    real.run_until(lambda: bool(times))
    record_property("asked 3 ms, achieved ns", times[0] - start)
    assert times[0] - start >= 3 * MILLISECOND
    assert real.dispatcher.idle.sleeps >= 1


def test_real_periods_do_not_drift(real: Processor, record_property: Record):
    times: list[int] = []
    timer = Timer(real)
    dpc = Dpc(real, lambda *_: times.append(now_ns()))
    dpc.importance = LOW_IMPORTANCE
    period = 2 * MILLISECOND
    start = now_ns()
    timer.set(period, period_ns=period, dpc=dpc)
    real.run_until(lambda: len(times) == 20)
    timer.cancel()
    for number, when in enumerate(times, 1):
        assert when - start >= number * period  # never early, however late the one before was
    lateness = [(when - start) % period for when in times]
    record_property("lateness in ns, least and most", (min(lateness), max(lateness)))


def test_an_earlier_deadline_entered_later_is_kept(real: Processor):
    order: list[str] = []
    for name, due in [("late", 6), ("early", 2), ("middle", 4)]:
        create_system_thread(
            real,
            lambda name=name, due=due: (
                delay_execution(real, due * MILLISECOND),
                order.append(name),
            ),
        )
    real.run_until(lambda: len(order) == 3)
    assert order == ["early", "middle", "late"]


def test_idle_costs_no_processor_time(real: Processor, record_property: Record):
    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    real.run_thread(delay_execution, real, MILLISECOND)
    sleeps, before = real.dispatcher.idle.sleeps, used()
    real.run_thread(delay_execution, real, 500 * MILLISECOND)
    cost = used() - before
    record_property("processor seconds in 0.5 s of idle", cost)
    assert cost < 0.05
    assert real.dispatcher.idle.sleeps - sleeps < 10


# Work from other OS threads


def test_thousands_of_posts_from_many_os_threads_all_arrive(real: Processor):
    received: list[tuple[int, int]] = []

    def poster(number: int) -> None:
        for count in range(2_000):
            real.post(lambda count=count: received.append((number, count)))

    threads = in_threads(4, poster)
    real.run_until(lambda: len(received) == 8_000)
    for thread in threads:
        thread.join()
    for number in range(4):
        assert [count for who, count in received if who == number] == list(range(2_000))


def test_a_post_just_when_the_processor_falls_asleep_is_not_lost(real: Processor):
    """Each post comes when the processor has nothing else to do: one lost would hang the test."""
    answers = [threading.Semaphore(0) for _ in range(2)]
    rounds = 1_000
    done: list[int] = []

    def poster(number: int) -> None:
        for _ in range(rounds):
            real.post(answers[number].release)
            answers[number].acquire()
        real.post(lambda: done.append(number))

    threads = in_threads(2, poster)
    real.run_until(lambda: len(done) == 2)
    for thread in threads:
        thread.join()


class PostingLook:
    """Stands for the posted work: a post comes in just after it was seen to be empty."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor

    def __bool__(self) -> bool:
        self.processor.post(str)
        return False


@pytest.mark.parametrize("moment", ["just before the look", "just after the look"])
def test_a_post_at_the_worst_moment_ends_the_sleep(real: Processor, moment: str):
    posted: Any = PostingLook(real) if moment == "just after the look" else deque([str])
    start = now_ns()
    real.dispatcher.idle.wait(start + 2_000 * MILLISECOND, posted)
    assert now_ns() - start < 1_000 * MILLISECOND


def test_a_post_sets_what_a_kernel_thread_waits_for(real: Processor):
    event = Event(real, notification=False)

    def body() -> int:
        for _ in range(200):
            threads = in_threads(1, lambda _: real.post(event.set))
            event.wait()
            threads[0].join()
        return 200

    assert real.run_thread(body) == 200


def test_the_eventfd_is_written_only_for_a_sleeping_processor(real: Processor):
    idle = real.dispatcher.idle
    done: list[int] = []
    for _ in range(100):
        real.post(lambda: done.append(1))  # nobody sleeps here
    real.run_until(lambda: len(done) == 100)
    assert idle.sleeps == 0


def test_stop_from_another_os_thread(real: Processor):
    threads = in_threads(1, lambda _: real.post(real.stop))
    real.run()
    threads[0].join()


def interrupt_when_asleep(processor: Processor) -> None:
    give_up = now_ns() + 5_000 * MILLISECOND
    while not processor.dispatcher.idle.asleep and now_ns() < give_up:
        os.sched_yield()
    os.kill(os.getpid(), signal.SIGUSR1)


def test_stop_by_a_signal(real: Processor, pipe: tuple[int, int]):
    """A handler that posts may run after the sleep it should end; the descriptor ends the sleep."""

    def signalled() -> None:
        assert os.read(pipe[0], 100) == bytes([signal.SIGUSR1])
        real.stop()

    real.add_source(pipe[0], signalled)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    wakeup_before = signal.set_wakeup_fd(pipe[1])
    try:
        threads = in_threads(1, lambda _: interrupt_when_asleep(real))
        real.run()
        threads[0].join()
    finally:
        signal.set_wakeup_fd(wakeup_before)
        signal.signal(signal.SIGUSR1, before)
    real.remove_source(pipe[0])


# Descriptors


def test_a_readable_descriptor_calls_back_in_the_dispatcher(real: Processor, pipe: tuple[int, int]):
    seen: list[Any] = []

    def readable() -> None:
        seen.append((os.read(pipe[0], 100), real.current_thread, real.irql))

    real.add_source(pipe[0], readable)
    threads = in_threads(1, lambda _: os.write(pipe[1], b"x"))
    real.run_until(lambda: bool(seen))
    threads[0].join()
    assert seen == [(b"x", None, 0)]
    real.remove_source(pipe[0])
    real.remove_source(pipe[0])  # a source that is not there is no error


def test_a_source_may_start_a_system_service_or_wake_a_thread(
    real: Processor, pipe: tuple[int, int]
):
    event = Event(real, notification=False)

    def readable() -> None:
        os.read(pipe[0], 100)
        event.set()

    real.add_source(pipe[0], readable)

    def body() -> int:
        for _ in range(50):
            os.write(pipe[1], b"x")
            event.wait()
        return 50

    assert real.run_thread(body) == 50


def test_sources_are_served_while_threads_keep_the_processor_busy(
    real: Processor, pipe: tuple[int, int]
):
    os.write(pipe[1], b"x")
    seen: list[bytes] = []
    real.add_source(pipe[0], lambda: seen.append(os.read(pipe[0], 100)))

    def body() -> int:
        for turns in range(10_000):
            if seen:
                return turns
            real.dispatcher.yield_execution()
        return 10_000

    assert real.run_thread(body) < 10_000


def test_sources_are_served_soon_although_each_pass_takes_long(
    real: Processor, pipe: tuple[int, int]
):
    os.write(pipe[1], b"x")
    seen: list[bytes] = []
    real.add_source(pipe[0], lambda: seen.append(os.read(pipe[0], 100)))

    def body() -> int:
        turns = 0
        while not seen and turns < 100:
            turns += 1
            until = now_ns() + 2 * LOOK_EVERY_NS
            while now_ns() < until:
                pass
            real.dispatcher.yield_execution()
        return turns

    assert real.run_thread(body) <= 2


def test_sources_are_served_while_callbacks_keep_the_processor_busy(
    real: Processor, pipe: tuple[int, int]
):
    os.write(pipe[1], b"x")
    seen: list[bytes] = []
    rounds: list[int] = []
    real.add_source(pipe[0], lambda: seen.append(os.read(pipe[0], 100)))

    def device() -> None:
        rounds.append(1)
        real.schedule_hardware(device)

    real.schedule_hardware(device)
    real.run_until(lambda: bool(seen) or len(rounds) > 10_000)
    assert len(rounds) < 200


def test_objects_with_a_descriptor_and_the_end_of_a_peer(real: Processor):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    received: list[bytes] = []
    with left, right:

        def readable() -> None:
            received.append(left.recv(100))
            if not received[-1]:
                real.remove_source(left)

        real.add_source(left, readable)
        right.send(b"hello")
        real.run_until(lambda: len(received) == 1)
        right.close()
        real.run_until(lambda: len(received) == 2)
    assert received == [b"hello", b""]


def test_a_callback_may_remove_itself_and_others(real: Processor):
    """Of two readable sources the first served removes both: only one is served."""
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]
    served: list[int] = []

    def readable(number: int) -> None:
        served.append(number)
        for end, _ in pipes:
            real.remove_source(end)

    for number, (end, other) in enumerate(pipes):
        os.write(other, b"x")
        real.add_source(end, lambda number=number: readable(number))
    real.run_thread(delay_execution, real, 2 * MILLISECOND)
    assert len(served) == 1
    for ends in pipes:
        for end in ends:
            os.close(end)


def test_a_descriptor_number_used_again_in_the_same_round_is_not_called_for_the_old_event(
    real: Processor,
):
    """Two sources are ready; the first served closes the other and opens one with its number."""
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]
    served: list[int] = []
    spurious: list[int] = []
    reopened: list[int] = []

    def readable(number: int) -> None:
        served.append(number)
        for end, _ in pipes:
            real.remove_source(end)
        victim = pipes[1 - number][0]
        os.close(victim)
        new, other = os.pipe2(os.O_NONBLOCK)
        reopened.extend([new, other])
        assert new == victim
        real.add_source(new, lambda: spurious.append(new))

    for number, (end, other) in enumerate(pipes):
        os.write(other, b"x")
        real.add_source(end, lambda number=number: readable(number))
    real.run_thread(delay_execution, real, 2 * MILLISECOND)
    assert (len(served), spurious) == (1, [])
    real.remove_source(reopened[0])
    for descriptor in {*(end for ends in pipes for end in ends), *reopened}:
        os.close(descriptor)


# zmq sockets


@pytest.fixture
def sockets() -> Iterator[Callable[[int], Any]]:
    """Make connected sockets: one ROUTER-like end for the processor, one for the test."""
    context = zmq.Context()
    made: list[Any] = []

    def pair(number: int) -> tuple[Any, Any]:
        bound, connected = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        bound.bind(f"inproc://idle-{number}")
        connected.connect(f"inproc://idle-{number}")
        made.extend([bound, connected])
        return bound, connected

    yield pair
    for made_socket in made:
        made_socket.close(linger=0)
    context.term()


def test_a_zmq_socket_is_a_source(real: Processor, sockets: Callable[[int], Any]):
    bound, connected = sockets(0)
    received: list[bytes] = []
    real.add_source(bound, lambda: received.append(bound.recv(zmq.NOBLOCK)))

    def body() -> None:
        for number in range(100):
            connected.send(b"%d" % number)
            if number % 10 == 0:
                delay_execution(real, 1)

    real.run_thread(body)
    real.run_until(lambda: len(received) == 100)
    assert received == [b"%d" % number for number in range(100)]
    real.remove_source(bound)
    real.remove_source(bound)


def test_sockets_and_descriptors_together_and_removal_in_a_callback(
    real: Processor, sockets: Callable[[int], Any], pipe: tuple[int, int]
):
    ends = [sockets(number) for number in range(3)]
    served: list[int] = []
    piped: list[bytes] = []

    def readable(number: int) -> None:
        served.append(number)
        for bound, _ in ends:
            real.remove_source(bound)

    for number, (bound, connected) in enumerate(ends):
        connected.send(b"x")
        real.add_source(bound, lambda number=number: readable(number))
    os.write(pipe[1], b"x")
    real.add_source(pipe[0], lambda: piped.append(os.read(pipe[0], 100)))
    real.run_thread(delay_execution, real, 2 * MILLISECOND)
    assert len(served) == 1
    assert piped == [b"x"]


# Looking before sleeping


def test_what_comes_while_the_processor_looks_needs_no_sleep(
    sockets: Callable[[int], Any],
):
    processor = Processor(RealClock())
    idle = processor.dispatcher.idle
    idle.window = SpinWindow(10_000_000_000, 10_000_000_000)  # who sleeps here has not looked
    bound, connected = sockets(0)
    received: list[bytes] = []

    def answer() -> None:
        received.append(bound.recv(zmq.NOBLOCK))
        if len(received) == 2:
            processor.post(lambda: received.append(b"posted"))
        else:
            connected.send(b"again")

    processor.add_source(bound, answer)
    connected.send(b"first")
    processor.run_until(lambda: len(received) == 3)
    assert received == [b"first", b"again", b"posted"]
    assert idle.sleeps == 0
    idle.close()


def test_looking_ends_at_the_deadline_of_a_timer():
    processor = Processor(RealClock())
    processor.dispatcher.idle.window = SpinWindow(10_000_000_000, 10_000_000_000)
    began = processor.clock.now_ns()
    processor.run_thread(delay_execution, processor, 2 * MILLISECOND)
    assert processor.clock.now_ns() - began < 5_000_000_000
    processor.dispatcher.idle.close()


# Descriptors are given back; the idle of a machine in process


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_closing_gives_every_descriptor_back():
    before = open_descriptors()
    for _ in range(5):
        processor = Processor(RealClock())
        assert open_descriptors() > before
        processor.run_thread(delay_execution, processor, 1)
        processor.dispatcher.idle.close()
        assert open_descriptors() == before


def test_a_post_after_the_close_writes_to_nobody():
    """An OS thread may have seen the processor asleep just before the descriptors were closed."""
    processor = Processor(RealClock())
    idle = processor.dispatcher.idle
    before = open_descriptors()
    idle.close()
    readers = [os.pipe2(os.O_NONBLOCK) for _ in range(before)]  # takes the numbers given back
    idle.asleep = True
    processor.post(print)
    for ends in readers:
        with pytest.raises(BlockingIOError):
            os.read(ends[0], 8)
        for end in ends:
            os.close(end)


def test_a_machine_in_process_opens_no_descriptor_and_remembers_sources(pipe: tuple[int, int]):
    before = open_descriptors()
    processor = Processor(VirtualClock())
    processor.add_source(pipe[0], lambda: pytest.fail("there is no outside"))
    os.write(pipe[1], b"x")
    processor.run_thread(delay_execution, processor, MILLISECOND)
    processor.remove_source(pipe[0])
    processor.remove_source(pipe[0])
    processor.dispatcher.idle.close()
    assert open_descriptors() == before


def test_idle_collects_cycles_when_many_objects_are_young(real: Processor):
    class Node:
        def __init__(self) -> None:
            self.me = self

    gc.disable()
    try:
        gc.collect()
        nodes = [Node() for _ in range(60_000)]
        assert gc.get_count()[0] > 50_000
        nodes.clear()
        for _ in range(50):  # a thread that is late is never waited for
            real.run_thread(delay_execution, real, MILLISECOND)
            if gc.get_count()[0] < 1_000:
                break
        assert gc.get_count()[0] < 1_000
    finally:
        gc.enable()


@pytest.mark.parametrize(("collections", "generation"), [(0, 1), (19, 1), (20, 2), (40, 2)])
def test_idle_collects_the_old_too_from_time_to_time(
    real: Processor, monkeypatch: pytest.MonkeyPatch, collections: int, generation: int
):
    collected: list[int] = []
    monkeypatch.setattr(gc, "get_count", lambda: (60_000, 0, collections))
    monkeypatch.setattr(gc, "collect", collected.append)
    real.dispatcher.idle.wait(1, deque())
    assert collected == [generation]


# The timer descriptor


def test_timer_descriptor_arms_disarms_and_takes_the_past():
    timer = TimerDescriptor()
    try:
        poller = select.poll()
        poller.register(timer.fileno(), select.POLLIN)
        timer.arm(now_ns() + 10**12)
        assert poller.poll(0) == []
        for past in (-5, 0, 1, now_ns()):
            timer.arm(past)
            assert poller.poll(1_000)
            timer.drain()
            assert poller.poll(0) == []
        due = now_ns() + MILLISECOND
        timer.arm(due)
        timer.arm(due)
        assert poller.poll(1_000)
        assert now_ns() >= due
        timer.drain()
        timer.drain()  # nothing to take is no error
        timer.arm(now_ns() + MILLISECOND)
        timer.arm(None)
        assert poller.poll(3) == []
    finally:
        timer.close()
