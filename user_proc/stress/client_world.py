"""What a client's steps work on: its context, its objects by name, its account of requests.

Rules: one thread.
"""

import errno
import os
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from user_proc.process import UserProcess
from user_proc.stress.findings import WRONG, Finding, NothingToDo
from user_proc.stress.ledger import Ledger
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from user_proc.verbs.verb_session import VerbRefusal, VerbSession

_T = TypeVar("_T")
DEVICE: Final = "mthca0"
#: How long nothing may come back before something is lost, on a machine with much to do.
PATIENCE_S: Final = 20.0
_LOOKS: Final = 10
_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02


class Polled(Protocol):
    """Something with completions to be taken."""

    def poll(self) -> int:
        """Take what has come; return how many."""


class World:
    """One client at a kernel; `count` is told after every operation and completion."""

    def __init__(self, kernel: str, count: Callable[[int, int], None]) -> None:
        self.ledger: Final = Ledger()
        self.operations = 0
        self._count = count
        self.process: Final = UserProcess.connect(kernel)
        self.context: Final = Context(name=DEVICE, process=self.process)
        self.pd: Final = PD(self.context)
        self.lid: Final[int] = self.context.query_port(1).lid
        self.things: Final[dict[str, Any]] = {}
        self.polled: Final[dict[str, Polled]] = {}
        self.patience_s = PATIENCE_S
        self.faulty = False  # answers may be lost: a refusal can end as silence
        self.streams = os.getpid() << 8
        self.idle: Callable[[float], None] | None = None  # waits for other things so long
        self._empty_looks = 0

    @property
    def session(self) -> VerbSession:
        """The verbs as the library asks them."""
        return self.context.session()

    def stream(self) -> int:
        """Give a number to a direction of messages."""
        self.streams += 1
        return self.streams & 0xFFFF_FFFF

    def count(self) -> None:
        """Tell how far the client is."""
        self._count(self.operations, self.ledger.completions)

    # Objects by name

    def one(self, name: str, kind: type[_T]) -> _T:
        """Return a thing of a kind; NothingToDo if there is none of that name."""
        found = self.things.get(name)
        if not isinstance(found, kind):
            raise NothingToDo(f"{name} is not there")
        return found

    def keep(self, name: str, made: Any) -> None:
        """Have a thing under a name that is free."""
        self.things[name] = made

    def require_free(self, name: str) -> None:
        """Raise NothingToDo if there is a thing of that name."""
        if name in self.things:
            raise NothingToDo(f"{name} is there already")

    # Calls that the model judges

    def call(self, what: str, call: Callable[[], _T], *refusals: int) -> _T | None:
        """Do a verb that must succeed, or, if errnos are given, be refused with one of them.

        0 among them means that it may succeed, too.
        """
        self.operations += 1
        self.count()
        try:
            made = call()
        except (PyverbsRDMAError, VerbRefusal) as error:
            number = error.errno if isinstance(error, VerbRefusal) else error.error_code
            if number in refusals:
                return None
            raise Finding(WRONG, f"{what}: {_wanted(refusals)}, got: {error}") from error
        except PyverbsError as error:
            raise Finding(WRONG, f"{what}: {_wanted(refusals)}, got: {error}") from error
        if refusals and 0 not in refusals:
            raise Finding(WRONG, f"{what}: {_wanted(refusals)}, but it succeeded")
        return made

    def pump(self) -> int:
        """Take every completion that has come; return how many."""
        found = sum(one.poll() for one in list(self.polled.values()))
        if found:
            self._empty_looks = 0
            self.count()
        return found

    def rest(self) -> None:
        """Let others have the processor after a look in vain; longer after many of them."""
        self._empty_looks += 1
        further = self._empty_looks - _LOOKS
        if self.idle is not None and further > 0:
            # Many clients that looked all the time would leave no processor to those they wait for.
            self.idle(min(_PAUSE_S * further, _LONGEST_PAUSE_S))
        else:
            os.sched_yield()


def _wanted(refusals: tuple[int, ...]) -> str:
    if not refusals:
        return "should succeed"
    names = (errno.errorcode.get(one, "success") for one in refusals)
    return f"should be refused with {' or '.join(names)}"
