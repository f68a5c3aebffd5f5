"""Who may have how many of the kernel's descriptors, so that they never run out.

libzmq ends the process when it cannot accept a connection for want of a descriptor. Everything
that takes descriptors on behalf of a user is therefore bounded beforehand, and the sum of the
bounds is less than there are.

Rules: at start; the limit must not be lowered afterwards.
Spec: getrlimit(2) RLIMIT_NOFILE.
"""

import resource
from dataclasses import dataclass
from typing import Final

from kernel_proc.server.connection_gate import AHEAD
from kernel_proc.settings import KernelSettings

FEWEST: Final = 48  # with which a kernel comes up and serves a user
_MOST: Final = 1 << 20
# Sockets, poller, timer, log, the HCA, kernel memory, and what is open for a moment.
_OWN: Final = 72
_PER_SILENT: Final = 6  # connection, pidfd, its lane's eventfd, what a Hello brings
# Lifeline, pidfd, memory, maps, its lane's eventfd, an arena being made; doorbells and eventfd.
_PER_SESSION: Final = 9
_PER_ARENA: Final = 2  # its mapping and its bus segment hold one each
_PLANNED_ARENAS: Final = 4  # of a session, when descriptors are short
_STRANGERS: Final = 32

#: Connections of one session beside one for each thread: sockets being replaced.
_SPARE_CONNECTIONS: Final = 8
LISTENER_CONNECTIONS: Final = 2


class TooFewDescriptors(Exception):
    """The system grants this process fewer descriptors than a kernel needs; the text says so."""


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """The bounds; `connections` are those of one session to the request socket.

    An arena takes two descriptors.
    """

    sessions: int
    silent: int
    strangers: int
    connections: int
    arenas: int


def plan_descriptors(settings: KernelSettings, limit: int) -> DescriptorPlan:
    """Divide `limit` descriptors; with few of them there are fewer sessions, but one at least."""
    silent = max(1, min(settings.max_silent_connections, limit // 32))
    strangers = max(1, min(_STRANGERS, limit // 16))
    connections = settings.max_threads_per_session + _SPARE_CONNECTIONS
    shared = _OWN + silent * _PER_SILENT + strangers + min(AHEAD, limit // 16)
    fixed = _PER_SESSION + connections + LISTENER_CONNECTIONS
    left = limit - shared
    planned = _PLANNED_ARENAS * _PER_ARENA
    sessions = max(1, min(settings.max_sessions, left // (fixed + planned)))
    arenas = max(sessions, (left - sessions * fixed) // _PER_ARENA)
    return DescriptorPlan(sessions, silent, strangers, connections, arenas)


def raise_descriptor_limit() -> int:
    """Raise RLIMIT_NOFILE as far as allowed; return what it is then.

    TooFewDescriptors if no kernel can run with that: libzmq would end the process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if wanted < FEWEST:
        raise TooFewDescriptors(f"a kernel needs {FEWEST} descriptors, the limit is {wanted}")
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else _MOST
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
