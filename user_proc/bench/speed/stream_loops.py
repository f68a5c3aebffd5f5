"""Loops that keep many messages under way.

A chain of requests is told to the device by one doorbell, its last request signaled; the next chain
of a queue pair is posted when one of its chains has completed. The receiving end of sends gives
back receive requests in such chains. Datagrams are dropped where no receive request waits, so their
sender posts no more than the receiver has told it has room for.

Rules: both ends do the same number of messages: a multiple of chain and queue pairs.
"""

from user_proc.bench.speed.shared_places import WORD_CREDIT
from user_proc.bench.speed.speed_waiting import poll, wait_for_credit
from user_proc.bench.speed.transfer_end import TransferEnd

_POLLED_AT_ONCE = 64


def stream_out(end: TransferEnd, count: int, words: memoryview) -> None:
    """Post so many messages over all queue pairs, and wait until all have completed."""
    spec = end.spec
    chains = count // spec.chain
    posts = [qp.post_send for qp in end.qps]
    requests = [end.send_requests(index, spec.chain) for index in range(spec.qps)]
    room = end.receives if spec.transport == "UD" else 0
    left = [chains // spec.qps] * spec.qps
    under_way = posted = 0
    for _ in range(max(1, spec.depth // spec.chain)):
        for index in range(spec.qps):
            if left[index]:
                left[index] -= 1
                posted += spec.chain
                if room:
                    wait_for_credit(words, WORD_CREDIT, max(0, posted - room))
                posts[index](requests[index])
                under_way += 1
    cq = end.send_cq
    while under_way:
        for completion in poll(cq, _POLLED_AT_ONCE):
            index = completion.wr_id
            if not left[index]:
                under_way -= 1
                continue
            left[index] -= 1
            posted += spec.chain
            if room:
                wait_for_credit(words, WORD_CREDIT, max(0, posted - room))
            posts[index](requests[index])


def stream_in(end: TransferEnd, count: int, words: memoryview) -> None:
    """Take so many messages, and have as many receive requests waiting at the end as before."""
    chain = end.spec.chain
    posts = [qp.post_recv for qp in end.qps]
    requests = end.receive_requests(chain)
    numbers, cq = end.numbers, end.receive_cq
    owed = [0] * len(posts)
    given = came = 0
    tells = end.spec.transport == "UD"
    while came < count:
        found = poll(cq, _POLLED_AT_ONCE)
        came += len(found)
        for completion in found:
            index = numbers[completion.qp_num]
            owed[index] += 1
            if owed[index] == chain:
                owed[index] = 0
                posts[index](requests)
                given += chain
        if tells:
            words[WORD_CREDIT] = given
