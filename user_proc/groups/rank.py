"""What a program finds of its launch: its number, the others, and a way to tell each other things.

    from user_proc.groups.rank import Rank

    rank = Rank.from_environment()
    rank.publish("address", {"lid": 1, "qpn": 0x400})
    peer = rank.lookup("server", 0, "address")
    rank.barrier("go")
    rank.report(ops_per_s=1000.0)

Rules: any thread, one call at a time: the others wait. A forked child makes one of its own.
"""

import os
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final, Self

import msgpack

from user_proc.errors import SofthcaError
from user_proc.groups.rank_wire import (
    ENV_GROUP,
    ENV_KERNEL,
    ENV_RANK,
    ENV_SIZE,
    ENV_SOCKET,
    ENV_TOKEN,
    GONE,
    MAX_VALUE,
    MAX_WAIT_MS,
    OK,
    PROTOCOL,
    TIMED_OUT,
    Answer,
    Barrier,
    FrameError,
    FrameReader,
    Hello,
    Lookup,
    Message,
    Publish,
    Reach,
    Report,
    decode,
    encode,
)

WAIT_SECONDS: Final = 30.0

_ANSWER_SECONDS: Final = 15.0  # beyond what the launcher was asked to wait
_RECEIVE: Final = 64 * 1024


class NotLaunched(SofthcaError):
    """This process was not started by a launch."""


class LaunchEnded(SofthcaError):
    """The launch has ended, or has closed this rank's connection."""


class ForkedRank(SofthcaError):
    """A forked child used the rank of its parent."""


class RankRefused(SofthcaError, ValueError):
    """The launch refuses what was asked, in words."""


class RankGone(SofthcaError):
    """The rank that was waited for has ended."""


class RankTimeout(SofthcaError, TimeoutError):
    """What was waited for did not come in time."""


_ERRORS: Final[Mapping[int, type[SofthcaError]]] = {TIMED_OUT: RankTimeout, GONE: RankGone}


class Rank:
    """This process as one of a group."""

    def __init__(
        self, group: str, rank: int, size: int, kernel: str, path: str, token: str
    ) -> None:
        self.group: Final = group
        self.rank: Final = rank
        self.size: Final = size
        self.kernel: Final = kernel
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reader = FrameReader()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(_ANSWER_SECONDS)
            self._socket.connect(path)
            self._ask(Hello(PROTOCOL, group, rank, token))
        except OSError as error:
            self.close()
            raise LaunchEnded(f"the launch cannot be reached ({error}): has it ended?") from error
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Return the rank this process was started as; NotLaunched if it was not."""
        found = os.environ if environment is None else environment
        try:
            return cls(
                found[ENV_GROUP],
                int(found[ENV_RANK]),
                int(found[ENV_SIZE]),
                found[ENV_KERNEL],
                found[ENV_SOCKET],
                found[ENV_TOKEN],
            )
        except (KeyError, ValueError) as error:
            raise NotLaunched(
                f"this program is one of a group ({error} is not in its environment): start it by "
                "'softhca launch FILE'"
            ) from error

    def publish(self, key: str, value: Any) -> None:
        """Let the others look a value up: None, numbers, texts, bytes, lists, dicts with texts."""
        data = msgpack.packb(value)
        if len(data) > MAX_VALUE:
            raise RankRefused(f"{key!r} has {len(data)} bytes: {MAX_VALUE} are the most")
        self._ask(Publish(key, bytes(data)))

    def lookup(self, group: str, rank: int, key: str, timeout: float = WAIT_SECONDS) -> Any:
        """Return what a rank has published; wait until it has.

        RankTimeout when `timeout` seconds passed, RankGone when that rank has ended before.
        """
        milliseconds = _milliseconds(timeout)
        return msgpack.unpackb(self._ask(Lookup(group, rank, key, milliseconds), timeout))

    def barrier(self, name: str, timeout: float = WAIT_SECONDS) -> None:
        """Wait until every rank of the barrier's groups has come to it.

        The groups are those under [barriers] in the launch's file, else this rank's own group.
        RankTimeout and RankGone as in `lookup`.
        """
        self._ask(Barrier(name, _milliseconds(timeout)), timeout)

    def report(self, **figures: float) -> None:
        """Tell figures: `ops_per_s` is shown while the launch runs, all are in its document."""
        self._ask(Report({name: float(value) for name, value in figures.items()}))

    def ready(self) -> None:
        """Reach the point `ready`."""
        self.reach("ready")

    def reach(self, point: str) -> None:
        """Reach a point that other groups may wait for (`after`, `until`)."""
        self._ask(Reach(point))

    def close(self) -> None:
        """Say no more; the process goes on as it likes."""
        self._socket.close()

    def _ask(self, message: Message, wait: float = 0.0) -> bytes:
        if os.getpid() != self._pid:
            raise ForkedRank("this Rank is the parent's: a forked child makes one of its own")
        try:
            frame = encode(message)
        except FrameError as error:
            raise RankRefused(f"this cannot be told: {error}") from error
        with self._lock:
            answer = self._exchange(frame, wait)
        if answer.status != OK:
            raise _ERRORS.get(answer.status, RankRefused)(answer.sentence)
        return answer.value

    def _exchange(self, frame: bytes, wait: float) -> Answer:
        """Send a frame and read its answer; a connection that fails half-way is closed."""
        try:
            self._socket.settimeout(wait + _ANSWER_SECONDS)
            self._socket.sendall(frame)
            while True:
                data = self._socket.recv(_RECEIVE)
                if not data:
                    raise LaunchEnded("the launch has closed this rank's connection")
                for body in self._reader.feed(data):
                    answer = decode(body)
                    if isinstance(answer, Answer):
                        return answer
        except (OSError, FrameError) as error:
            self.close()
            raise LaunchEnded(f"the launch does not answer any more: {error}") from error
        except BaseException:
            self.close()  # an answer may still come: it would be taken for the next one's
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def _milliseconds(timeout: float) -> int:
    return min(max(0, round(timeout * 1000)), MAX_WAIT_MS)
