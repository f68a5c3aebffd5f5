"""The words for what devices and ports report.

Spec: rdma-core, pyverbs/device.pyx.
"""

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

from shared.verbs_enums import ibv_event_type
from user_proc.verbs.libibverbs_enums import (
    ibv_device_cap_flags,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
)

_NODE_TYPES: Final = {1: "CA", 2: "Switch", 3: "Router", 4: "RNIC", 5: "USNIC", 6: "USNIC UDP"}
_TRANSPORTS: Final = {0: "IB", 1: "IWARP", 2: "USNIC", 3: "USNIC UDP"}
_GID_TYPES: Final = {0: "IB", 1: "RoCEv1", 2: "RoCEv2"}
_LINK_LAYERS: Final = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
_PORT_STATES: Final = {
    0: "NOP (0)",
    1: "Down (1)",
    2: "Init (2)",
    3: "Armed (3)",
    4: "Active (4)",
    5: "Defer (5)",
}
_MTUS: Final = {1: "256 (1)", 2: "512 (2)", 3: "1024 (3)", 4: "2048 (4)", 5: "4096 (5)"}
_PHYSICAL_STATES: Final = {
    1: "Sleep (1)",
    2: "Polling (2)",
    3: "Disabled (3)",
    4: "Port configuration training (4)",
    5: "Link up (5)",
    6: "Link error recovery (6)",
    7: "Phy test (7)",
}
_WIDTHS: Final = {1: "1X (1)", 2: "4X (2)", 4: "8X (4)", 8: "12X (8)", 16: "2X (16)"}
_SPEEDS: Final = {
    1: "2.5 Gbps (1)",
    2: "5.0 Gbps (2)",
    4: "5.0 Gbps (4)",
    8: "10.0 Gbps (8)",
    16: "14.0 Gbps (16)",
    32: "25.0 Gbps (32)",
    64: "50.0 Gbps (64)",
    128: "100.0 Gbps (128)",
    256: "200.0 Gbps (256)",
}
_VL_NUMBERS: Final = {1: "VL0", 2: "VL0, VL1", 3: "VL0 - VL3", 4: "VL0 - VL7", 5: "VL0 - VL14"}


def translate_node_type(node_type: int) -> str:
    """Name a node type."""
    return _NODE_TYPES.get(node_type, "Unknown")


def translate_transport_type(transport_type: int) -> str:
    """Name a transport."""
    return _TRANSPORTS.get(transport_type, "Unknown")


def translate_gid_type(gid_type: int) -> str:
    """Name a GID type."""
    return _GID_TYPES.get(gid_type, "Unknown")


def translate_link_layer(layer: int) -> str:
    """Name a link layer."""
    return _LINK_LAYERS.get(layer, "Unspecified")


def translate_event_type(event_type: int) -> str:
    """Name an asynchronous event."""
    try:
        return ibv_event_type(event_type).name
    except ValueError:
        return f"Unknown event_type ({event_type})"


def translate_mtu(mtu: int) -> str:
    """Name an MTU code."""
    return _MTUS.get(mtu, f"Invalid MTU ({mtu})")


def translate_max_vl_num(number: int) -> str:
    """Name a code of virtual lanes."""
    words = _VL_NUMBERS.get(number)
    return f"{words} ({number})" if words else f"Invalid value ({number})"


def port_state_to_str(port_state: int) -> str:
    """Name a port's logical state."""
    return _PORT_STATES.get(port_state, f"Invalid state ({port_state})")


def phys_state_to_str(phys_state: int) -> str:
    """Name a port's physical state."""
    return _PHYSICAL_STATES.get(phys_state, "Invalid physical state")


def width_to_str(width: int) -> str:
    """Name a link width."""
    return _WIDTHS.get(width, "Invalid width")


def speed_to_str(active_speed: int, active_speed_ex: int = 0) -> str:
    """Name a speed of one lane; the extended code wins unless it is 0."""
    return _SPEEDS.get(active_speed_ex or active_speed, "Invalid speed")


def guid_format(num: int) -> str:
    """Print a GUID that is stored in network order."""
    host = struct.unpack("<Q", struct.pack(">Q", num))[0]
    digits = f"{host:016x}"
    return ":".join(digits[at : at + 4] for at in range(0, 16, 4))


def guid_to_hex(node_guid: int) -> str:
    """Print a number's hexadecimal digits."""
    return f"{node_guid:x}"


def str_from_flags(flags: int, dictionary: Mapping[int, str] | type[IntEnum]) -> str:
    """List the names of the flags that are set, each on a line of its own."""
    pairs: Iterable[tuple[int, str]]
    if isinstance(dictionary, Mapping):
        pairs = dictionary.items()
    else:
        pairs = [(int(member), member.name) for member in dictionary]
    return "".join(f"\n    {name}" for bit, name in pairs if flags & bit)


def translate_device_caps(flags: int) -> str:
    """List a device's capabilities."""
    return str_from_flags(flags, ibv_device_cap_flags)


def translate_port_cap_flags(flags: int) -> str:
    """List a port's capabilities."""
    return str_from_flags(flags, ibv_port_cap_flags)


def translate_port_cap_flags2(flags: int) -> str:
    """List a port's further capabilities."""
    return str_from_flags(flags, ibv_port_cap_flags2)
