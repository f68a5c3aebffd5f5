"""The words for types, states and flags, and GIDs as text.

Spec: rdma-core, pyverbs/utils.py.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from shared.verbs_enums import ibv_rereg_mr_err_code, ibv_send_flags
from user_proc.verbs.pyverbs_error import PyverbsUserError

GID_LENGTH: Final = 16

_QP_TYPES: Final = {
    2: "RC",
    3: "UC",
    4: "UD",
    8: "Raw Packet",
    9: "XRCD_SEND",
    10: "XRCD_RECV",
    255: "Driver QP",
}
_QP_STATES: Final = {0: "Reset", 1: "Init", 2: "RTR", 3: "RTS", 4: "SQD", 5: "SQE", 6: "Error"}
_MTUS: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_ACCESS: Final = {
    1: "Local write",
    2: "Remote write",
    4: "Remote read",
    8: "Remote atomic",
    16: "MW bind",
    32: "Zero based",
    64: "On demand",
}
_MIGRATION: Final = {0: "Migrated", 1: "Re-arm", 2: "Armed"}


def gid_str(subnet_prefix: int, interface_id: int) -> str:
    """Print a GID of two halves in network order, in full."""
    return text_of_gid(struct.pack("=QQ", subnet_prefix, interface_id))


def text_of_gid(raw: bytes) -> str:
    """Print the 16 bytes of a GID: eight groups of four digits."""
    digits = raw.hex()
    return ":".join(digits[at : at + 4] for at in range(0, 2 * GID_LENGTH, 4))


def gid_str_to_array(val: str) -> list[str]:
    """Split a GID's text into 16 strings of two digits."""
    groups = val.split(":")
    if len(groups) != 8 or any(len(group) != 4 for group in groups):
        raise PyverbsUserError(f"Invalid GID value ({groups})")
    return [group[at : at + 2] for group in groups for at in (0, 2)]


def gid_of_text(val: str) -> bytes:
    """Read a GID's text; ValueError for digits that are none."""
    return bytes(_octet(pair) for pair in gid_str_to_array(val))


def _octet(pair: str) -> int:
    """Read two hexadecimal digits; `int` alone would take a sign or a blank, too."""
    if not all(digit in "0123456789abcdefABCDEF" for digit in pair):
        raise ValueError(f"invalid literal for int() with base 16: {pair!r}")
    return int(pair, 16)


def qp_type_to_str(qp_type: int) -> str:
    """Name a queue pair type."""
    return _QP_TYPES.get(qp_type, f"Unknown ({qp_type})")


def qp_state_to_str(qp_state: int) -> str:
    """Name a queue pair state."""
    return _QP_STATES.get(qp_state, "Unknown")


def mtu_to_str(mtu: int) -> int:
    """Give the bytes of an MTU code, 0 for none."""
    return _MTUS.get(mtu, 0)


def access_flags_to_str(flags: int) -> str:
    """List access flags."""
    return "".join(f"{name} " for bit, name in _ACCESS.items() if flags & bit)


def mig_state_to_str(mig: int) -> str:
    """Name a path migration state."""
    return _MIGRATION.get(mig, f"Unknown ({mig})")


def rereg_error_to_str(code: int) -> str:
    """Name what a reregistration returned."""
    try:
        return ibv_rereg_mr_err_code(code).name
    except ValueError:
        return f"Unknown error ({code})"


def names_of_send_flags(flags: int) -> str:
    """List send flags."""
    return names_of_flags(flags, ibv_send_flags)


def names_of_flags(flags: int, members: Iterable[IntEnum]) -> str:
    """List the full names of flags, a space after each."""
    return "".join(f"{member.name} " for member in members if flags & member)
