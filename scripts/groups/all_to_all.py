"""Every rank writes a block into every other rank's memory, and all look; see all-to-all.toml."""

import sys

from queue_pairs import Endpoint

import user_proc.verbs.enums as e
from user_proc.groups.rank import Rank
from user_proc.verbs.wr import SendWR


def main() -> None:
    """Be one of the ranks: the lower half of the region is read, the upper half written."""
    size = int(sys.argv[1])
    with Rank.from_environment() as rank:
        others = [number for number in range(rank.size) if number != rank.rank]
        half = rank.size * size
        with Endpoint(rank, 2 * half, queues=len(others)) as end:
            rank.publish("region", [end.mr.buf + half, end.mr.rkey])
            qps = {number: end.queue_pair() for number in others}
            for number, qp in qps.items():
                end.connect(qp, rank.group, number)
            for number, qp in qps.items():
                end.mr.write(block(rank.rank, number, size), size, number * size)
                write = SendWR(number, e.IBV_WR_RDMA_WRITE, 1, sg=end.piece(number * size, size))
                write.send_flags = e.IBV_SEND_SIGNALED
                address, rkey = rank.lookup(rank.group, number, "region")
                write.set_wr_rdma(rkey, address + rank.rank * size)
                qp.post_send(write)
            assert sorted(end.completions(len(others))) == others
            rank.barrier("written")
            for number in others:
                found = end.mr.read(size, half + number * size)
                assert found == block(number, rank.rank, size), f"wrong block from {number}"
            rank.report(blocks=len(others))
            rank.barrier("read")  # nobody's region goes before


def block(source: int, target: int, size: int) -> bytes:
    """Give what one rank writes to another."""
    return f"from {source} to {target}. ".encode().ljust(size, b".")
