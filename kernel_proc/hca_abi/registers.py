"""The register page of the HCA, and the words kernel and HCA use at once.

One page, BAR0 + 0x80000 of the device. The HCR's dwords are big-endian as the device's are. Its
first six have one writer at a time (GO says which) and may be packed; dword 6, which holds GO, is
read while it is written: one aligned 4-byte store of the swapped value. The words from
EQ_CONSUMER_OFFSET on are native, 8-byte aligned, of one writer each, and touched through
`shared.live_words` only.

Spec: Linux drivers/infiniband/hw/mthca/mthca_cmd.c (HCR at BAR0 + 0x80680); mthca_eq.c.
"""

import struct
from typing import Final

REGISTER_PAGE_SIZE: Final = 4096

# The HCR: in_param (u64), input_modifier, out_param (u64), token << 16, then dword 6. Dword 6 is
# written last and alone, and its status is valid only while GO is clear.
HCR_OFFSET: Final = 0x680
HCR_PARAMETERS: Final = struct.Struct(">QIQI")
HCR_CONTROL_OFFSET: Final = HCR_OFFSET + HCR_PARAMETERS.size
HCR_CONTROL: Final = struct.Struct(">I")
HCR_OUT_PARAM_OFFSET: Final = HCR_OFFSET + 0x0C
HCR_OUT_PARAM: Final = struct.Struct(">Q")

HCR_OPMOD_SHIFT: Final = 12
HCR_E_BIT: Final = 1 << 22  # a completion event is wanted
HCR_GO_BIT: Final = 1 << 23
HCR_STATUS_SHIFT: Final = 24
HCR_TOKEN_SHIFT: Final = 16
POLLING_TOKEN: Final = 0xFFFF

MAILBOX_SIZE: Final = 4096
MAILBOX_ALIGNMENT: Final = 4096
COMMANDS_OUTSTANDING_LOG2: Final = 6

# Commands can also be posted through a command doorbell: entries of the six parameter dwords and
# dword 6, without a look at GO. Only commands that end with an event are. The entry at position i
# of all that were posted lies at index i mod COMMAND_RING_ENTRIES; COMMANDS_POSTED publishes it.
COMMAND_RING_OFFSET: Final = 0x000
COMMAND_RING_ENTRIES: Final = 32
COMMAND_RING_ENTRY: Final = struct.Struct(">QIQII")
COMMAND_RING_STRIDE: Final = 32

# Written by the kernel: one consumer index for each EQ; how many packets it has sent on the control
# socket, which the HCA serves before the next command, and how many commands it has posted through
# the doorbell; whether the kernel sleeps.
EQ_CONSUMER_OFFSET: Final = 0x800
EQ_COUNT: Final = 32
SENT_OFFSET: Final = 0x900
COMMANDS_POSTED_OFFSET: Final = 0x908
KERNEL_SLEEPS_OFFSET: Final = 0x940

# Written by the HCA, each on a line of its own: how often the interrupt line was raised; whether
# the HCA sleeps, and whether it keeps the kernel from a processor while it wakes it; how many
# packets of the control socket it has served, and how many commands it has taken from the doorbell;
# the catastrophic error buffer, all zero while the device works; for each command, in the order of
# COMMANDS, how many were executed, and in nanoseconds what their modelled time was and what they
# took.
LINE_OFFSET: Final = 0x980
HCA_SLEEPS_OFFSET: Final = 0x9C0
KERNEL_MOVED_OFFSET: Final = 0x9C8
SERVED_OFFSET: Final = 0xA00
COMMANDS_TAKEN_OFFSET: Final = 0xA08
CATASTROPHIC_OFFSET: Final = 0xA40
CATASTROPHIC_WORDS: Final = 8
COMMAND_TIMES_OFFSET: Final = 0xA80
COMMAND_TIMES_WORDS: Final = 3

COMPLETION_EQ: Final = 0
ASYNC_EQ: Final = 1
COMMAND_EQ: Final = 2

# A bus address is a segment and an offset; 0 names nothing.
SEGMENT_SHIFT: Final = 48
SEGMENT_OFFSET_MASK: Final = (1 << SEGMENT_SHIFT) - 1
MOST_SEGMENTS: Final = 1 << 16
