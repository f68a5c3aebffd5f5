"""Which queues the numbers in completions mean: the queue pairs and shared queues of a context.

Rules: any thread; single look-ups and stores of a dict.
"""

from typing import Final

from user_proc.provider.receive_ring import ReceiveRing, SharedReceiveRing
from user_proc.provider.send_ring import SendRing


class QueueTable:
    """Send and receive rings by queue pair number, shared ones by their own."""

    __slots__ = ("receive", "send", "shared")

    def __init__(self) -> None:
        self.send: Final[dict[int, SendRing]] = {}
        self.receive: Final[dict[int, ReceiveRing]] = {}
        self.shared: Final[dict[int, SharedReceiveRing]] = {}

    def forget(self, qpn: int) -> None:
        """Know a queue pair no more: what completes for it is passed over."""
        self.send.pop(qpn, None)
        self.receive.pop(qpn, None)

    def complete(self, qpn: int, position: int, is_send: int, srqn: int) -> int | None:
        """Free what a completion names; give the wr_id, None if it names nothing of ours."""
        ring: SendRing | SharedReceiveRing | None
        if is_send:
            ring = self.send.get(qpn)
        elif srqn:
            # By its own number alone: an XRC message may have come through another's queue pair.
            ring = self.shared.get(srqn)
        else:
            ring = self.receive.get(qpn)
        return None if ring is None else ring.complete(position)
