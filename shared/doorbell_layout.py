"""The doorbell segment of a session, and the status page of the HCA.

The segment is written by the session's processes only and read by the HCA only. Each queue has a
slot, an index word: of a send, receive or shared receive queue how many entries were posted, of a
CQ how many were polled, and in a second slot how it is armed. To ring: store the index word, put
an entry into the ring, store RUNG + 1, full fence, and write the eventfd if the HCA says that it
sleeps. The HCA keeps what it has seen and clears nothing; if RUNG moved by more than the ring
holds it looks at every slot of the session. A CQ's consumer index is not rung.

The status page is written by the HCA and mapped read-only by everybody else.

Rules: words are touched through `live_words`; one thread rings at a time in one process.
"""

from typing import Final

WORD: Final = 8

RUNG_WORD: Final = 0
RING_WORD: Final = 0x1000 // WORD  # index of the ring's first entry, in words
RING_ENTRIES: Final = 4096
FIRST_SLOT_WORD: Final = 0x10000 // WORD
SEGMENT_LENGTH: Final = 1 << 20
SLOTS: Final = (SEGMENT_LENGTH - 0x10000) // WORD

# An entry of the ring is kind << KIND_SHIFT | slot.
KIND_SHIFT: Final = 32
SLOT_MASK: Final = (1 << KIND_SHIFT) - 1
RING_SEND: Final = 1
RING_RECEIVE: Final = 2
RING_SRQ: Final = 3
RING_CQ_ARM: Final = 4

# An arm word: solicited only, a sequence number that makes each arm another value (1 on), how many
# arms ago the last one for any entry was, and the consumer index at arming. The HCA may see the
# last of several arms only; that number, 0 if there was none and 7 for that many or more, tells it
# whether one for any entry was among those it has not seen.
ARM_SOLICITED: Final = 1 << 63
ARM_SEQUENCE_SHIFT: Final = 48
ARM_SEQUENCE_MASK: Final = (1 << 15) - 1
ARM_ANY_AGE_SHIFT: Final = 45
ARM_ANY_AGE_MASK: Final = 7
INDEX_MASK: Final = (1 << ARM_ANY_AGE_SHIFT) - 1

# The status page, in words.
STATUS_PAGE_LENGTH: Final = 4096
STATUS_SLEEPS_WORD: Final = 0
STATUS_SPIN_HINT_WORD: Final = 8  # empty looks before a poller yields
STATUS_FATAL_WORD: Final = 16  # not 0: the device is dead
STATUS_PROCESSOR_WORD: Final = 24  # 1 + the one the HCA was last seen on; 0: unknown
