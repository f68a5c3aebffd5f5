"""Who may have how many of the kernel's descriptors, so that they never run out.

libzmq ends the process when it cannot accept a connection for want of a descriptor, and accepts
as many as `AHEAD` before any can be judged. So that many stay in reserve, whatever the limit.
Everything that takes descriptors on behalf of a user is bounded beforehand, and the sum of the
bounds is less than there are. Where that leaves too little for one session there is no kernel.

Rules: at start; the limit must not be lowered afterwards.
Spec: getrlimit(2) RLIMIT_NOFILE.
"""

import resource
from typing import Final, NamedTuple

from kernel_proc.server.connection_gate import AHEAD
from kernel_proc.settings import KernelSettings

#: What is asked for at most.
MOST: Final = 1 << 20
# Sockets, poller, timer, log, the HCA, kernel memory, and what is open for a moment.
_OWN: Final = 72
_PER_SILENT: Final = 6  # connection, pidfd, its lane's eventfd, what a Hello brings
# Lifeline, pidfd, memory, maps, its lane's eventfd, an arena being made; doorbells and eventfd;
# completions, and the sign that there is room for more.
_PER_SESSION: Final = 11
_PER_ARENA: Final = 2  # its mapping and its bus segment hold one each
_PLANNED_ARENAS: Final = 4  # of a session, when descriptors are short
_STRANGERS: Final = 32

#: Connections of one session beside one for each thread: sockets being replaced.
_SPARE_CONNECTIONS: Final = 8


class TooFewDescriptors(Exception):
    """The system grants this process fewer descriptors than a kernel needs; the text says so."""

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(
            f"a kernel with these settings needs {needed} descriptors, the limit is {limit}; "
            f"raise the hard limit (ulimit -Hn)"
        )


class DescriptorPlan(NamedTuple):
    """The bounds; `connections` are those of one session to the request socket.

    An arena takes two descriptors. Of `limit` descriptors a kernel needs `needed` at least.
    """

    needed: int
    limit: int
    sessions: int
    silent: int
    strangers: int
    connections: int
    arenas: int

    def inspect(self) -> dict[str, int]:
        """Return the plan as plain values."""
        return self._asdict()


def plan_descriptors(settings: KernelSettings, limit: int) -> DescriptorPlan:
    """Divide `limit` descriptors; with few of them there are fewer sessions, but one at least.

    TooFewDescriptors if they do not suffice for one.
    """
    connections = settings.max_threads_per_session + _SPARE_CONNECTIONS
    fixed = _PER_SESSION + connections
    planned = fixed + _PLANNED_ARENAS * _PER_ARENA
    room = limit - _OWN - AHEAD - planned  # beside one session
    fewest = _PER_SILENT + 1
    needed = limit - room + fewest
    if room < fewest:
        raise TooFewDescriptors(needed, limit)
    silent = max(1, min(settings.max_silent_connections, room // 32))
    strangers = max(1, min(_STRANGERS, room // 16))
    left = limit - _OWN - AHEAD - silent * _PER_SILENT - strangers
    sessions = min(settings.max_sessions, left // planned)
    arenas = (left - sessions * fixed) // _PER_ARENA
    return DescriptorPlan(needed, limit, sessions, silent, strangers, connections, arenas)


def raise_descriptor_limit() -> int:
    """Raise RLIMIT_NOFILE as far as allowed; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else MOST
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
