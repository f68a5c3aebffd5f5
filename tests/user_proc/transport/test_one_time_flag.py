"""Flags that are set once: no interruption of a waiter keeps anybody else from going on."""

import signal
import threading
from collections.abc import Iterator

import pytest

from user_proc.transport.one_time_flag import OneTimeFlag

SECONDS = 10.0


class Interruption(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM raises, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise Interruption

    old = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, old)


def test_it_is_set_once_and_stays_so():
    flag = OneTimeFlag()
    assert not flag.is_set()
    assert not flag.wait(0)
    assert not flag.wait(0.01)
    flag.set()
    flag.set()
    assert flag.is_set()
    assert flag.wait()
    assert flag.wait(0)


def test_every_waiter_goes_on():
    flag, barrier = OneTimeFlag(), threading.Barrier(9)
    results: list[bool] = []

    def wait(timeout: float | None) -> None:
        barrier.wait()
        results.append(flag.wait(timeout))

    threads = [
        threading.Thread(target=wait, args=(timeout,)) for timeout in [None] * 4 + [SECONDS] * 4
    ]
    for thread in threads:
        thread.start()
    barrier.wait()
    flag.set()
    for thread in threads:
        thread.join(SECONDS)
    assert results == [True] * 8


def test_a_waiter_interrupted_with_the_lock_keeps_nobody_waiting():
    flag = OneTimeFlag()
    other = threading.Thread(target=flag.wait)
    other.start()
    flag._is_set = True  # it is set, and the first waiter was interrupted with the lock
    other.join(SECONDS)
    assert not other.is_alive()
    assert flag.wait(0)


@pytest.mark.timeout(30, method="thread")  # the other method has the signal
@pytest.mark.usefixtures("alarm")
def test_the_setter_never_waits_for_an_interrupted_waiter():
    flags = [OneTimeFlag() for _ in range(300)]
    asked = [threading.Event() for _ in flags]

    def set_all() -> None:
        for flag, event in zip(flags, asked, strict=True):
            event.wait(SECONDS)
            flag.set()

    setter = threading.Thread(target=set_all, daemon=True)
    setter.start()
    interrupted = 0
    for number, (flag, event) in enumerate(zip(flags, asked, strict=True)):
        event.set()
        try:
            signal.setitimer(signal.ITIMER_REAL, 5e-6 * (1 + number % 12))
            while True:  # the handler raises, if late, in here
                flag.wait(SECONDS)
        except Interruption:
            interrupted += 1
        assert flag.wait(SECONDS)
    setter.join(SECONDS)
    assert not setter.is_alive()
    assert interrupted == len(flags)
