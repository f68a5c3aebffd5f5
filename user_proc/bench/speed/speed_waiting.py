"""How the ends of a measured transfer wait, and when they give up.

A poller of a completion queue yields as `CQ.poll` does. One that looks at words of memory yields
after as many empty looks as the HCA says, by the same rule.

Rules: whoever waits gives up after some seconds, so that a broken path ends a run with a sentence.
"""

import os
from collections.abc import Callable
from typing import Final

from shared.clock import now_ns
from user_proc.errors import SofthcaError
from user_proc.verbs.cq import CQ, WC, CompChannel

PATIENCE_NS: Final = 10_000_000_000
_LOOKS: Final = 1023  # looks between two at the clock, less one


class SpeedFailed(SofthcaError):
    """A message did not come, or came wrong."""


def poll(cq: CQ, most: int) -> list[WC]:
    """Poll until there are completions; return at most so many, all successful."""
    looks = until_ns = 0
    while True:
        count, found = cq.poll(most)
        if count:
            break
        looks += 1
        if not looks & _LOOKS:
            until_ns = until_ns or now_ns() + PATIENCE_NS
            _give_up_after(until_ns, "completion")
    for one in found:
        if one.status:
            raise SpeedFailed(f"a completion has status {one.status}, vendor {one.vendor_err:#x}")
    return found


def make_waiter(cq: CQ, channel: CompChannel | None) -> Callable[[int], list[WC]]:
    """Return how to wait for completions of a queue: by its events if it has a channel.

    The queue is armed before it is waited for: what has come already raises its event at once then,
    so none is missed, and no event comes for what has been polled.
    """

    def polling(most: int) -> list[WC]:
        return poll(cq, most)

    if channel is None:
        return polling
    events = channel

    def by_event(most: int) -> list[WC]:
        found: list[WC] = []
        while not found:
            cq.req_notify()
            events.get_cq_event(cq)
            cq.ack_events(1)
            found = cq.poll(most)[1]
        for one in found:
            if one.status:
                raise SpeedFailed(f"a completion has status {one.status}")
        return found

    return by_event


def wait_for_word(words: memoryview, index: int, value: int, spin: int) -> None:
    """Look at a word, or a byte, until it has the value."""
    looks = until_ns = 0
    while words[index] != value:
        looks += 1
        if looks > spin:
            os.sched_yield()
        if not looks & _LOOKS:
            until_ns = until_ns or now_ns() + PATIENCE_NS
            _give_up_after(until_ns, "word")


def wait_for_credit(words: memoryview, index: int, least: int) -> None:
    """Look at a word until it has a value or a larger one."""
    looks = until_ns = 0
    while words[index] < least:
        looks += 1
        os.sched_yield()
        if not looks & _LOOKS:
            until_ns = until_ns or now_ns() + PATIENCE_NS
            _give_up_after(until_ns, "word")


def _give_up_after(until_ns: int, what: str) -> None:
    if now_ns() > until_ns:
        raise SpeedFailed(f"no {what} came for {PATIENCE_NS / 1e9:g} s")
