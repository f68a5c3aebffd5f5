"""Waiting for completions, or for a byte to change, while the other side may die.

A loop that finds nothing gives the processor away as `CQ.poll` does, and looks now and then
whether the other side still lives. With events it sleeps instead.

Rules: main thread.
Spec: ibv_get_cq_event(3).
"""

import os
import select
from collections.abc import Callable
from typing import Final

from shared.clock import now_ns
from shared.verbs_enums import ibv_wc_status
from user_proc.perftest.peer_link import PeerLink
from user_proc.perftest.tool_errors import ToolFailed
from user_proc.verbs.completion import WC, cqe_status_to_str
from user_proc.verbs.cq import CQ, CompChannel

_SUCCESS: Final = int(ibv_wc_status.IBV_WC_SUCCESS)
_FLUSHED: Final = int(ibv_wc_status.IBV_WC_WR_FLUSH_ERR)
_LOOKS: Final = 64  # empty ones between two looks for the other side
_SLEEP_MS: Final = 500  # between two looks at the kernel, where events are awaited
_PATIENCE_NS: Final = 120 * 10**9
_DEATH_SECONDS: Final = 0.5  # its requests fail before its connection ends


class Patience:
    """How long a loop goes on that finds nothing."""

    def __init__(self) -> None:
        self._seen = -1
        self._until = 0

    def look(self, progress: int) -> None:
        """Give up if this is what it was for too long."""
        now = now_ns()
        if progress != self._seen:
            self._seen, self._until = progress, now + _PATIENCE_NS
        elif now > self._until:
            raise ToolFailed(f"nothing has come for {_PATIENCE_NS // 10**9} s")


class Completions:
    """One completion queue; `beside` is the other one of the same queue pairs."""

    def __init__(
        self, cq: CQ, beside: CQ, link: PeerLink, channel: CompChannel | None = None
    ) -> None:
        self._cq: Final = cq
        self._beside: Final = beside
        self._link: Final = link
        self._channel: Final = channel
        self._empty = 0

    def poll(self, most: int) -> list[WC]:
        """Take what is there; ToolFailed for one that is not a success."""
        count, found = self._cq.poll(most)
        if count:
            for one in found:
                if one.status:
                    self._fail(one)
            return found
        self._empty += 1
        if self._empty % _LOOKS == 0:
            self._link.look()
        return found

    def wait(self, most: int, until_word: bool = False) -> list[WC]:
        """Wait for at least one; with `until_word` none once the other side has sent a word."""
        patience: Patience | None = None  # until something does not come at once
        while True:
            found = self.poll(most)
            if not found and self._channel is not None:
                found = self._sleep(self._channel, most, until_word)
            elif not found and self._empty % _LOOKS:
                continue
            if found:
                return found
            if until_word and self._link.look():
                return self.poll(most)
            patience = patience or Patience()
            patience.look(0)

    def _sleep(self, channel: CompChannel, most: int, until_word: bool) -> list[WC]:
        """Arm, look once more, and sleep until something happens."""
        self._cq.req_notify()
        found = self.poll(most)
        if found:
            return found
        waiting = select.poll()
        waiting.register(channel.fd, select.POLLIN)
        waiting.register(self._link, select.POLLRDHUP | (select.POLLIN if until_word else 0))
        ready = [descriptor for descriptor, _ in waiting.poll(_SLEEP_MS)]
        if channel.fd in ready:
            channel.get_cq_event(self._cq)
            self._cq.ack_events(1)
        elif ready:
            self._link.look()
        return self.poll(most)

    def _fail(self, completion: WC) -> None:
        """Say why a request failed: the other side's death, if that is it."""
        self._link.look_within(_DEATH_SECONDS)
        if completion.status == _FLUSHED:
            completion = self._cause() or completion
        raise ToolFailed(
            f"a request failed with '{cqe_status_to_str(completion.status)}' "
            f"(vendor error {completion.vendor_err:#x})"
        )

    def _cause(self) -> WC | None:
        """Find what failed before the others were flushed: it may be in either queue."""
        for cq in (self._beside, self._cq):
            while found := cq.poll(1)[1]:
                if found[0].status not in (_SUCCESS, _FLUSHED):
                    return found[0]
        return None


class ByteWait:
    """Waiting for a byte of memory the other side writes to."""

    def __init__(self, link: PeerLink, reap: Callable[[], None], spin_hint: int) -> None:
        self._link: Final = link
        self._reap: Final = reap  # so that a failed send is noticed
        self._spin: Final = spin_hint

    def wait(self, memory: memoryview, value: int, until_word: bool = False) -> bool:
        """Wait until the first byte is `value`; False if a word came from the other side first."""
        looks = 0
        patience: Patience | None = None
        while memory[0] != value:
            looks += 1
            if looks > self._spin:
                os.sched_yield()
            if looks % _LOOKS == 0:
                self._reap()
                if self._link.look() and until_word:
                    return memory[0] == value
                patience = patience or Patience()
                patience.look(0)
        return True
