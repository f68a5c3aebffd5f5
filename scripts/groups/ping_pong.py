"""Two ranks send a message to and fro, and report how often a second; see ping-pong.toml."""

import sys
import time

from queue_pairs import Endpoint

import user_proc.verbs.enums as e
from user_proc.groups.rank import Rank
from user_proc.verbs.wr import RecvWR, SendWR

SIZE = 64
RECEIVE, SEND = 1, 2


def main() -> None:
    """Play one of the two: rank 0 begins."""
    rounds = int(sys.argv[1])
    with Rank.from_environment() as rank, Endpoint(rank, 2 * SIZE) as end:
        qp = end.queue_pair()
        end.connect(qp, rank.group, 1 - rank.rank)
        send = SendWR(SEND, num_sge=1, sg=end.piece(0, SIZE), send_flags=e.IBV_SEND_SIGNALED)
        receive = RecvWR(RECEIVE, num_sge=1, sg=end.piece(SIZE, SIZE))
        qp.post_recv(receive)
        rank.barrier("go")
        begun = time.perf_counter()
        expected = [RECEIVE]
        for number in range(rounds):
            text = f"message {number}".ljust(SIZE)
            if rank.rank == 0:
                end.mr.write(text, SIZE)
                qp.post_send(send)
                expected = [RECEIVE, SEND]
            assert sorted(end.completions(len(expected))) == expected
            assert end.mr.read(SIZE, SIZE).decode() == text
            qp.post_recv(receive)
            if rank.rank == 1:
                end.mr.write(text, SIZE)
                qp.post_send(send)
                expected = [RECEIVE, SEND]  # of the next round, and of this one
        if rank.rank == 1:
            end.completions(1)
        rank.report(ops_per_s=rounds / (time.perf_counter() - begun), rounds=rounds)
