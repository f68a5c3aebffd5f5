"""Many producers send into one shared receive queue of a consumer; see shared-receives.toml."""

import struct
import sys
import time

from queue_pairs import DEPTH, Endpoint

import user_proc.verbs.enums as e
from user_proc.groups.rank import Rank
from user_proc.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from user_proc.verbs.wr import RecvWR, SendWR

PAIR = struct.Struct("<II")


def consumer() -> None:
    """Take what comes, whoever sent it: each message once, and each producer's in order."""
    producers, messages = int(sys.argv[1]), int(sys.argv[2])
    with (
        Rank.from_environment() as rank,
        Endpoint(rank, DEPTH * PAIR.size, queues=producers) as end,
        SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=DEPTH))) as srq,
    ):
        slots = [RecvWR(n, 1, end.piece(n * PAIR.size, PAIR.size)) for n in range(DEPTH)]
        for slot in slots:
            srq.post_recv(slot)
        qps = [end.queue_pair(srq) for _ in range(producers)]
        rank.ready()
        for number, qp in enumerate(qps):
            end.connect(qp, "producer", number)
        next_of = [0] * producers
        begun = time.perf_counter()
        for _ in range(producers * messages):
            (slot,) = end.completions(1)
            who, number = PAIR.unpack(end.mr.read(PAIR.size, slot * PAIR.size))
            assert number == next_of[who], f"message {number} of {who}, {next_of[who]} was due"
            next_of[who] += 1
            srq.post_recv(slots[slot])
        taken = sum(next_of)
        rank.report(ops_per_s=taken / (time.perf_counter() - begun), taken=taken)
        for qp in qps:
            qp.close()


def producer() -> None:
    """Send numbered messages, one after the other."""
    messages = int(sys.argv[1])
    with Rank.from_environment() as rank, Endpoint(rank, PAIR.size) as end:
        qp = end.queue_pair()
        end.connect(qp, "consumer", 0)
        for number in range(messages):
            end.mr.write(PAIR.pack(rank.rank, number), PAIR.size)
            message = end.piece(0, PAIR.size)
            qp.post_send(SendWR(number, num_sge=1, sg=message, send_flags=e.IBV_SEND_SIGNALED))
            assert end.completions(1) == [number]
