"""The one place where a request socket of the user side is made, with every option it needs.

Rules: the thread that makes a socket is the one that uses it.
Spec: zmq_setsockopt(3).
"""

from typing import Final

import zmq

from shared.envelope import HEADER

#: How long a blocked send or receive goes without a look at the kernel's pidfd.
LOOK_MS: Final = 500

_SEND_HIGH_WATER: Final = 64


def make_dealer(
    context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, max_payload: int, answers: int
) -> "zmq.Socket[bytes]":
    """Connect a DEALER that keeps at most `answers` unread messages and blocks only in slices.

    Once its connection is lost, or could not be made, it can neither send nor receive.
    """
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a kernel that is not there
        socket.setsockopt(zmq.SNDHWM, _SEND_HIGH_WATER)
        socket.setsockopt(zmq.RCVHWM, answers)
        socket.setsockopt(zmq.MAXMSGSIZE, max(max_payload, HEADER.size))
        socket.setsockopt(zmq.RCVTIMEO, LOOK_MS)
        socket.setsockopt(zmq.SNDTIMEO, LOOK_MS)
        # What was on its way with a connection that is lost is lost, too: the port must see it.
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.connect(endpoint)
    except BaseException:
        socket.close(linger=0)
        raise
    return socket
