"""Whether what arrived is what was sent: patterns both sides can compute.

The receives of a shared queue have one place, so all queue pairs send one pattern then.

Rules: called while nothing is under way.
"""

import random
from typing import Final

from user_proc.perftest.endpoint import Endpoint

SERVER: Final = "server"
CLIENT: Final = "client"


def pattern(side: str, index: int, size: int) -> bytes:
    """Give what a side's queue pair sends in messages of this size."""
    return random.Random(f"{side} {index} {size}").randbytes(size)


def prepare(endpoint: Endpoint, side: str, size: int) -> None:
    """Have a pattern in what is sent, and nothing in what arrives."""
    for index in range(len(endpoint.qps)):
        endpoint.sent(index, size)[:] = pattern(side, 0 if endpoint.srq else index, size)
        endpoint.arrived(index, size)[:] = bytes(size)


def find_fault(endpoint: Endpoint, other: str, size: int, spared: int = 0) -> str:
    """Compare what arrived with the other side's pattern; give the fault, empty if there is none.

    The last `spared` bytes are the caller's.
    """
    length = size - spared
    for index in range(1 if endpoint.srq else len(endpoint.qps)):
        found, wanted = endpoint.arrived(index, length), pattern(other, index, size)[:length]
        if found != wanted:
            place = next(at for at, byte in enumerate(wanted) if found[at] != byte)
            return (
                f"wrong data: byte {place} of the {size} that arrived at queue pair "
                f"{endpoint.qps[index].qp_num:#x} is {found[place]:#04x}, not {wanted[place]:#04x}"
            )
    return ""
