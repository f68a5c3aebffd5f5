"""A call that an exception of a signal handler cannot break off in the middle.

Handlers run in the main thread alone, between any two steps of its Python code; there, what a
system call has just brought (a descriptor, the kernel's word that memory was granted) can be lost
before it has a name. So the main thread has another one make the call, and waits for it. If it is
interrupted then, the call still ends, and what it brought is given back.

Rules: any thread. Raw locks and threads: those of `threading` are Python code themselves.
"""

import _thread
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_BEGIN_SECONDS: Final = 5.0


def call_whole(routine: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Return what `routine` returns, or raise what it raises; undo what nobody waits for."""
    if threading.current_thread() is not threading.main_thread():
        return routine()
    errand = _Errand(routine, undo)
    try:
        try:
            _thread.start_new_thread(errand.run, ())
        except RuntimeError:  # the system has no thread for it, or the interpreter is ending
            errand.run()
        # A thread that finds no memory for its first frame ends without a word.
        if not errand.ended.acquire(timeout=_BEGIN_SECONDS):
            errand.run()  # unless the thread has begun
            errand.ended.acquire()
        return errand.result()
    except BaseException:
        errand.give_up()
        raise


class _Errand(Generic[T]):
    """One call: its outcome, and whether somebody still waits for it."""

    __slots__ = (
        "_error",
        "_hand_over",
        "_has_begun",
        "_is_given_up",
        "_routine",
        "_undo",
        "_values",
        "ended",
    )

    def __init__(self, routine: Callable[[], T], undo: Callable[[T], object]) -> None:
        self._routine = routine
        self._undo = undo
        self._values: list[T] = []
        self._error: BaseException | None = None
        self._has_begun = False
        self._is_given_up = False
        self._hand_over = _thread.allocate_lock()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()

    def run(self) -> None:
        """Make the call, in the other thread, once."""
        with self._hand_over:
            if self._has_begun:
                return
            self._has_begun = True
        try:
            value = self._routine()
        except BaseException as error:
            self._error = error
        else:
            with self._hand_over:
                is_wanted = not self._is_given_up
                if is_wanted:
                    self._values.append(value)
            if not is_wanted:
                self._undo(value)
        finally:
            self.ended.release()

    def give_up(self) -> None:
        """Undo the call, now or when it has ended."""
        with self._hand_over:
            self._is_given_up = True
        if self._values:
            self._undo(self._values.pop())

    def result(self) -> T:
        """Return or raise the outcome of a call that has ended."""
        error, self._error = self._error, None
        if error is None:
            return self._values[0]
        try:
            raise error
        finally:
            del error  # or it would be kept by its own traceback
