"""What one iteration of each latency tool is, and the loops that stamp them.

One stamp is taken just before each post; the samples are the differences of consecutive stamps.

Rules: main thread.
Spec: linux-rdma/perftest, perftest_resources.c (run_iter_lat_*).
"""

from typing import Final, Protocol

from shared.clock import now_ns
from user_proc.perftest.completion_loops import ByteWait, Completions
from user_proc.perftest.endpoint import Endpoint
from user_proc.perftest.measured_window import Window
from user_proc.perftest.peer_link import PeerLink
from user_proc.perftest.tool_errors import ToolFailed
from user_proc.verbs.wr import SendWR

SEND_DEPTH: Final = 64

_SIGNAL_EVERY: Final = SEND_DEPTH // 2
_LAST_VALUES: Final = 255  # a last byte is never 0, which it is before the first message


class Game(Protocol):
    """One iteration, in two halves."""

    def start(self, size: int) -> None:
        """Be ready for messages of a size."""

    def send(self, number: int) -> None:
        """Post the message of this iteration."""

    def wait(self, number: int, until_word: bool = False) -> bool:
        """Wait for the answer; False if the other side sent a word over TCP instead."""
        ...


class _Sender:
    """Posting with one signaled request in so many: the send queue is never full."""

    def __init__(self, endpoint: Endpoint, link: PeerLink, opcode: str) -> None:
        self.endpoint: Final = endpoint
        self.completions: Final = Completions(
            endpoint.send_cq, endpoint.receive_cq, link, endpoint.send_channel
        )
        self._opcode: Final = opcode
        self._posted = 0
        self._under_way = False

    def start(self, size: int) -> None:
        make = self.endpoint.request
        self._signaled: SendWR = make(0, self._opcode, size)
        self._silent: SendWR = make(0, self._opcode, size, signaled=False)

    def post(self) -> None:
        self._posted += 1
        if self._posted % _SIGNAL_EVERY:
            self.endpoint.qps[0].post_send(self._silent)
            return
        if self._under_way:
            self.completions.wait(1)
        self.endpoint.qps[0].post_send(self._signaled)
        self._under_way = True

    def reap(self) -> None:
        """Take the completion that is there, if one is."""
        if self.completions.poll(1):
            self._under_way = False


class SendGame:
    """Sends, or writes with immediate data, there and back: a receive tells of the other side's."""

    def __init__(self, endpoint: Endpoint, link: PeerLink, opcode: str) -> None:
        self._sender: Final = _Sender(endpoint, link, opcode)
        self._endpoint: Final = endpoint
        self._arrivals: Final = Completions(
            endpoint.receive_cq, endpoint.send_cq, link, endpoint.receive_channel
        )
        endpoint.fill_receives()

    def start(self, size: int) -> None:
        """Be ready for messages of a size."""
        self._sender.start(size)

    def send(self, number: int) -> None:
        """Post a send."""
        self._sender.post()

    def wait(self, number: int, until_word: bool = False) -> bool:
        """Wait for the other side's message, and have another receive ready."""
        if not self._arrivals.wait(1, until_word):
            return False
        self._endpoint.post_receive(0)
        return True


class WriteGame:
    """Writes there and back; each side waits for the last byte of its memory to change."""

    def __init__(self, endpoint: Endpoint, link: PeerLink) -> None:
        self._sender: Final = _Sender(endpoint, link, "RDMA_WRITE")
        self._endpoint: Final = endpoint
        self._bytes: Final = ByteWait(link, self._sender.reap, endpoint.spin_hint)

    def start(self, size: int) -> None:
        """Be ready for messages of a size."""
        self._sender.start(size)
        self._own_last = self._endpoint.sent(0, size)[-1:]
        self._last = self._endpoint.arrived(0, size)[-1:]

    def send(self, number: int) -> None:
        """Post a write whose last byte says which it is."""
        self._own_last[0] = number % _LAST_VALUES + 1
        self._sender.post()

    def wait(self, number: int, until_word: bool = False) -> bool:
        """Wait for the other side's write."""
        return self._bytes.wait(self._last, number % _LAST_VALUES + 1, until_word)


class ReadGame:
    """A read, until it completes."""

    def __init__(self, endpoint: Endpoint, link: PeerLink) -> None:
        self._endpoint: Final = endpoint
        self._completions: Final = Completions(
            endpoint.send_cq, endpoint.receive_cq, link, endpoint.send_channel
        )

    def start(self, size: int) -> None:
        """Be ready for reads of a size."""
        self._request = self._endpoint.request(0, "RDMA_READ", size)

    def send(self, number: int) -> None:
        """Post a read."""
        self._endpoint.qps[0].post_send(self._request)

    def wait(self, number: int, until_word: bool = False) -> bool:
        """Wait for its completion."""
        return bool(self._completions.wait(1))


class AtomicGame:
    """An atomic that adds one, or swaps for one more; what it fetches is checked each time."""

    def __init__(self, endpoint: Endpoint, link: PeerLink, kind: str) -> None:
        self._endpoint: Final = endpoint
        self._completions: Final = Completions(
            endpoint.send_cq, endpoint.receive_cq, link, endpoint.send_channel
        )
        self._swaps: Final = kind == "CMP_AND_SWAP"

    def start(self, size: int) -> None:
        """Begin to count at 0."""
        opcode = "ATOMIC_CMP_AND_SWP" if self._swaps else "ATOMIC_FETCH_AND_ADD"
        self._request = self._endpoint.request(0, opcode, size)
        self._fetched = self._endpoint.arrived(0, size).cast("Q")
        self.count = 0

    def send(self, number: int) -> None:
        """Post an atomic."""
        if self._swaps:
            request, endpoint = self._request, self._endpoint
            request.set_wr_atomic(
                endpoint.peer.rkey, request.remote_addr, self.count, self.count + 1
            )
        self._endpoint.qps[0].post_send(self._request)

    def wait(self, number: int, until_word: bool = False) -> bool:
        """Wait for its completion, and look what it found."""
        found = self._completions.wait(1)
        if self._fetched[0] != self.count:
            raise ToolFailed(
                f"wrong data: atomic {self.count} fetched {self._fetched[0]}, not {self.count}"
            )
        self.count += 1
        return bool(found)


def play(game: Game, first: bool, iterations: int) -> list[int]:
    """Run so many iterations; give the stamps."""
    stamps: list[int] = []
    send, wait = game.send, game.wait
    for number in range(iterations):
        if not first:
            wait(number)
        stamps.append(now_ns())
        send(number)
        if first:
            wait(number)
    return stamps


def play_for(game: Game, link: PeerLink, first: bool, window: Window) -> int:
    """Run for a time; give how many iterations began within the window.

    The side that begins decides when it is over, and says so over TCP.
    """
    number = 0
    while True:
        if first and now_ns() >= window.stop:
            link.send(over=number)
            return window.count
        if not first and not game.wait(number, until_word=True):
            link.receive()
            return window.count
        window.note(now_ns(), 1)
        game.send(number)
        if first:
            game.wait(number)
        number += 1
