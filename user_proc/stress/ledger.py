"""The account of work requests: each comes back once, in the order of its queue, as allowed.

A successful request that asked for no completion leaves none; it counts as done when a later one
of its queue has come back. A request of a queue that was reset or destroyed never comes back.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from user_proc.stress.findings import DOUBLED, LOST, WRONG, Finding
from user_proc.verbs.completion import WC, cqe_status_to_str

OK: Final = 0
LENGTH_ERROR: Final = 1
OPERATION_ERROR: Final = 2
PROTECTION_ERROR: Final = 4
FLUSHED: Final = 5
BIND_ERROR: Final = 6
LOCAL_ACCESS: Final = 8
REMOTE_INVALID: Final = 9
REMOTE_ACCESS: Final = 10
REMOTE_OPERATION: Final = 11
RETRIES_EXCEEDED: Final = 12
NOT_READY_EXCEEDED: Final = 13


@dataclass(slots=True)
class Posted:
    """A request that has not come back: which statuses it may have, and what is done then.

    `finish` gets the completion, or None of one that ended well without any.
    """

    what: str
    finish: Callable[[WC | None], None]
    allowed: frozenset[int]
    signaled: bool = True


class Account:
    """The requests of one queue that have not come back, oldest first."""

    def __init__(self, ledger: "Ledger", name: str, *, in_order: bool = True) -> None:
        self.name: Final = name
        self._ledger: Final = ledger
        self._in_order: Final = in_order  # not of a shared receive queue
        self._posted: OrderedDict[int, Posted] = OrderedDict()

    def __len__(self) -> int:
        return len(self._posted)

    def __iter__(self) -> Iterator[Posted]:
        return iter(self._posted.values())

    def post(self, posted: Posted) -> int:
        """Note a request that is about to be posted; return its wr_id."""
        number = self._ledger.next_number(self)
        self._posted[number] = posted
        return number

    def take_back(self, number: int) -> None:
        """Strike out a request that could not be posted."""
        del self._posted[number]
        self._ledger.strike(number)

    def allow(self, statuses: Iterable[int], *, only: bool = False) -> None:
        """Let every request that is out have these statuses too, or only these."""
        more = frozenset(statuses)
        for posted in self._posted.values():
            posted.allowed = more if only else posted.allowed | more

    def forget(self) -> None:
        """Strike out everything: the queue is empty now, and nothing of it may come any more."""
        for number in self._posted:
            self._ledger.strike(number)
        self._posted.clear()

    def come_back(self, number: int, wc: WC) -> None:
        """Take a completion; those before it must have been allowed to leave none."""
        if self._in_order:
            self._pass_over(number)
        posted = self._posted.pop(number)
        if wc.status not in posted.allowed:
            wanted = " or ".join(sorted(cqe_status_to_str(one) for one in posted.allowed))
            raise Finding(
                WRONG,
                f"{self.name}: {posted.what} came back with {cqe_status_to_str(wc.status)!r} "
                f"(vendor {wc.vendor_err}) instead of {wanted!r}",
            )
        posted.finish(wc)

    def _pass_over(self, number: int) -> None:
        """Count what is before a request that has come back as done."""
        while True:
            first, posted = next(iter(self._posted.items()))
            if first == number:
                return
            if posted.signaled or OK not in posted.allowed:
                raise Finding(
                    LOST, f"{self.name}: a later request came back before {posted.what} did"
                )
            del self._posted[first]
            self._ledger.strike(first)
            posted.finish(None)


class Ledger:
    """All accounts of a client; a request's number is its wr_id and is never used again."""

    def __init__(self) -> None:
        self.completions = 0
        self._next = 1
        self._accounts: dict[int, Account] = {}

    def next_number(self, account: Account) -> int:
        """Give a number to a request of an account."""
        number, self._next = self._next, self._next + 1
        self._accounts[number] = account
        return number

    def strike(self, number: int) -> None:
        """Have no account for a number any more."""
        del self._accounts[number]

    def take(self, wc: WC, where: str) -> None:
        """Book a completion; Finding if the model does not allow it."""
        self.completions += 1
        account = self._accounts.pop(wc.wr_id, None)
        if account is None:
            known = 0 < wc.wr_id < self._next
            raise Finding(
                DOUBLED if known else WRONG,
                f"{where}: a completion (status {wc.status}, QP {wc.qp_num:#x}) of request "
                f"{wc.wr_id}, which "
                + ("has come back or went with its queue" if known else "was never posted"),
            )
        account.come_back(wc.wr_id, wc)
