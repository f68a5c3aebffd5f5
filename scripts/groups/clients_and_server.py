"""A server answers numbers with their squares to many clients; see clients-and-server.toml."""

import struct
import sys
import time

from queue_pairs import Endpoint

import user_proc.verbs.enums as e
from user_proc.groups.rank import Rank
from user_proc.verbs.wr import RecvWR, SendWR

NUMBER = struct.Struct("<Q")
SIGNALED = e.IBV_SEND_SIGNALED


def server() -> None:
    """Serve so many clients so many requests each: the wr_id is the client, or beyond for sends."""
    clients, requests = int(sys.argv[1]), int(sys.argv[2])
    with (
        Rank.from_environment() as rank,
        Endpoint(rank, 2 * NUMBER.size * clients, queues=clients) as end,
    ):
        qps = [end.queue_pair() for _ in range(clients)]
        rank.ready()
        places = [(2 * n * NUMBER.size, (2 * n + 1) * NUMBER.size) for n in range(clients)]
        receives = [RecvWR(n, 1, end.piece(places[n][0], NUMBER.size)) for n in range(clients)]
        for number, qp in enumerate(qps):
            end.connect(qp, "client", number)
            qp.post_recv(receives[number])
        served = 0
        while served < 2 * clients * requests:  # each is a receive and a send
            (who,) = end.completions(1)
            served += 1
            if who < clients:
                (value,) = NUMBER.unpack(end.mr.read(NUMBER.size, places[who][0]))
                end.mr.write(NUMBER.pack(value * value), NUMBER.size, places[who][1])
                qps[who].post_recv(receives[who])
                answer = end.piece(places[who][1], NUMBER.size)
                qps[who].post_send(SendWR(clients + who, num_sge=1, sg=answer, send_flags=SIGNALED))
        rank.report(served=served // 2)


def client() -> None:
    """Ask, wait, and look whether the answer is right."""
    requests = int(sys.argv[1])
    with Rank.from_environment() as rank, Endpoint(rank, 2 * NUMBER.size) as end:
        qp = end.queue_pair()
        end.connect(qp, "server", 0)
        begun = time.perf_counter()
        for value in range(rank.rank, rank.rank + requests):
            qp.post_recv(RecvWR(1, 1, end.piece(NUMBER.size, NUMBER.size)))
            end.mr.write(NUMBER.pack(value), NUMBER.size)
            request = end.piece(0, NUMBER.size)
            qp.post_send(SendWR(2, num_sge=1, sg=request, send_flags=SIGNALED))
            assert sorted(end.completions(2)) == [1, 2]
            assert NUMBER.unpack(end.mr.read(NUMBER.size, NUMBER.size)) == (value * value,)
        rank.report(ops_per_s=requests / (time.perf_counter() - begun), answers=requests)
