"""complib's mutex over any lock of the kernel's that can be one.

A component library gives drivers one mutex, and what it is made of decides what a driver may do
inside: at which level its code runs, whether its own requests can end there, and whether it may
take the mutex once more.

| made of | IRQL inside | taken once more by its holder |
|---|---|---|
| `fast mutex` | APC_LEVEL | waits for ever |
| `unsafe fast mutex`, in a critical region | unchanged | waits for ever |
| `guarded mutex` | unchanged as in Server 2003, APC_LEVEL since Windows 8 | waits for ever |
| `mutex` | unchanged | counted |
| `semaphore` | unchanged | waits for ever |
| `event` | unchanged | waits for ever |

Rules: acquire at <= APC_LEVEL in a thread, which may wait. The rest as the lock has it.
Spec: WinOF inc/complib/cl_mutex.h, inc/kernel/complib/cl_mutex_osd.h; "Using of fast mutexes in
WinIb" (openib-windows, November 2005); docs/cl-mutex.md.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.fast_mutex import FastMutex
from kernel_proc.scheduling.guarded_mutex import GuardedMutex
from kernel_proc.scheduling.irql import APC_LEVEL, PASSIVE_LEVEL
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.semaphore import Semaphore

if TYPE_CHECKING:
    from kernel_proc.scheduling.processor import Processor

CL_SUCCESS: Final = 0


class _Lock(Protocol):
    """What a mutex is made of."""

    def acquire(self) -> object:
        """Take it, waiting if need be."""

    def release(self) -> object:
        """Give it back."""


class _UnsafeFastMutex:
    """A fast mutex without its level: the critical region keeps normal kernel APCs away."""

    __slots__ = ("_mutex", "_processor")

    def __init__(self, processor: "Processor") -> None:
        self._processor = processor
        self._mutex = FastMutex(processor, "cl_mutex")

    def acquire(self) -> None:
        thread = self._processor.current_thread
        if thread is None:
            self._processor.switch_from_dpc("cl_mutex_acquire")
        thread.enter_critical_region()
        self._mutex.acquire_unsafe()

    def release(self) -> None:
        self._mutex.release_unsafe()
        thread = self._processor.current_thread
        if thread is not None:
            thread.leave_critical_region()


class _Waited:
    """A dispatcher object that lets one in at a time."""

    __slots__ = ("acquire", "release")

    def __init__(self, acquire: Callable[[], object], release: Callable[[], object]) -> None:
        self.acquire = acquire
        self.release = release


def _of_mutex(processor: "Processor") -> _Lock:
    mutex = Mutex(processor)
    return _Waited(mutex.wait, mutex.release)


def _of_semaphore(processor: "Processor") -> _Lock:
    semaphore = Semaphore(processor, 1, 1)
    return _Waited(semaphore.wait, semaphore.release)


def _of_event(processor: "Processor") -> _Lock:
    event = Event(processor, notification=False, signaled=True)
    return _Waited(event.wait, event.set)


KINDS: Final[Mapping[str, "Callable[[Processor], _Lock]"]] = {
    "fast mutex": lambda processor: FastMutex(processor, "cl_mutex"),
    "unsafe fast mutex": _UnsafeFastMutex,
    "guarded mutex": lambda processor: GuardedMutex(processor, "cl_mutex"),
    "mutex": _of_mutex,
    "semaphore": _of_semaphore,
    "event": _of_event,
}

COMPLIBS_OWN: Final = "fast mutex"


class ClMutex:
    """A cl_mutex_t; making one is cl_mutex_construct. KeyError for a kind there is not."""

    __slots__ = ("_lock", "_make", "_processor", "held", "kind")

    def __init__(self, processor: "Processor", kind: str = COMPLIBS_OWN) -> None:
        self._processor = processor
        self._make = KINDS[kind]
        self._lock: _Lock | None = None
        self.kind = kind
        self.held = 0  # times, more than once if it is recursive

    def __str__(self) -> str:
        return f"cl_mutex over {self.kind}"

    @property
    def irql_inside(self) -> int:
        """The level of code between acquire and release that came at PASSIVE_LEVEL."""
        if self.kind == "fast mutex":
            return APC_LEVEL
        if self.kind == "guarded mutex" and self._processor.guarded_mutexes_at_apc_level:
            return APC_LEVEL
        return PASSIVE_LEVEL

    def init(self) -> int:
        """Make it ready to be acquired; CL_SUCCESS always (cl_mutex_init)."""
        self._lock = self._make(self._processor)
        self.held = 0
        return CL_SUCCESS

    def destroy(self) -> None:
        """End it; one that was never made ready may be ended, too (cl_mutex_destroy).

        ValueError while it is held.
        """
        if self.held:
            raise ValueError(f"{self} is destroyed while it is held")
        self._lock = None

    def acquire(self) -> None:
        """Wait until it is one's own (cl_mutex_acquire). ValueError before `init`."""
        self._ready().acquire()
        self.held += 1

    def release(self) -> None:
        """Let the next one in (cl_mutex_release). ValueError if nobody holds it."""
        lock = self._ready()
        if not self.held:
            raise ValueError(f"{self} is released, and nobody holds it")
        lock.release()
        self.held -= 1

    def _ready(self) -> _Lock:
        if self._lock is None:
            raise ValueError(f"{self} was not initialised, or is destroyed")
        return self._lock
