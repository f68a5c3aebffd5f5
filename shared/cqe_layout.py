"""A completion queue entry: 64 bytes, native, written by the HCA, read by the queue's owner.

The entry at position i of the queue's life lies at index i mod size, and is valid when its last
word is i + 1: written last, so a reader that finds it finds the rest. Sizes are powers of two.

Rules: VALID is a live word; the rest is read after it was found.
"""

import struct
from typing import Final, NamedTuple

CQE_SIZE: Final = 64
CQE_VALID_OFFSET: Final = 56
CQE_VALID_WORD: Final = CQE_VALID_OFFSET // 8


class Cqe(NamedTuple):
    """One completion; `wqe_index` is the position in its work queue, `status` an ibv_wc_status.

    `imm_data` is as it came (network order, or the invalidated key). `srqn` is not 0 when the
    receive entry was taken from a shared receive queue.
    """

    qpn: int
    wqe_index: int
    byte_len: int
    imm_data: int
    src_qp: int
    opcode: int
    status: int
    vendor_err: int
    is_send: int
    wc_flags: int
    slid: int
    pkey_index: int
    sl: int
    dlid_path_bits: int
    srqn: int
    solicited: int
    timestamp_ns: int


CQE: Final = struct.Struct("<IIIIIBBBBHHHBBIIQ8x")
