"""Many sources write into one sink's memory as fast as they can; see fan-in.toml."""

import sys
import time

from queue_pairs import DEPTH, Endpoint

import user_proc.verbs.enums as e
from user_proc.groups.rank import Rank
from user_proc.verbs.wr import SendWR

WINDOW = DEPTH // 2


def sink() -> None:
    """Offer a lane to each source, and look at the end at what lies in it."""
    sources, size = int(sys.argv[1]), int(sys.argv[2])
    with Rank.from_environment() as rank, Endpoint(rank, sources * size, queues=sources) as end:
        rank.publish("region", [end.mr.buf, end.mr.rkey])
        qps = [end.queue_pair() for _ in range(sources)]
        rank.ready()
        for number, qp in enumerate(qps):
            end.connect(qp, "source", number)
        rank.barrier("go")
        rank.barrier("written")
        for number in range(sources):
            assert end.mr.read(size, number * size) == bytes([number + 1]) * size
        rank.report(lanes=sources)


def source() -> None:
    """Write so many blocks, some at a time, and report messages and bytes a second."""
    size, blocks = int(sys.argv[1]), int(sys.argv[2])
    with Rank.from_environment() as rank, Endpoint(rank, size) as end:
        qp = end.queue_pair()
        end.connect(qp, "sink", 0)
        end.mr.write(bytes([rank.rank + 1]) * size, size)
        address, rkey = rank.lookup("sink", 0, "region")
        write = SendWR(0, e.IBV_WR_RDMA_WRITE, 1, 0, end.piece(0, size), e.IBV_SEND_SIGNALED)
        write.set_wr_rdma(rkey, address + rank.rank * size)
        rank.barrier("go")
        begun = time.perf_counter()
        posted = done = 0
        while done < blocks:
            while posted < min(blocks, done + WINDOW):
                qp.post_send(write)
                posted += 1
            done += len(end.completions(1))
        seconds = time.perf_counter() - begun
        rank.report(ops_per_s=blocks / seconds, bytes_per_s=blocks * size / seconds)
        rank.barrier("written")
