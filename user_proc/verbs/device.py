"""Devices, the contexts in which they are used, and their asynchronous events.

    with Context(name="mthca0") as context: ...

The kernel is the one named by `kernel`, by the environment variable SOFTHCA_NAME, or the default
one; `process` is a connection the program has already.

Rules: any thread. After a fork the child opens a context of its own.
Spec: rdma-core, pyverbs/device.pyx; ibv_open_device(3), ibv_get_async_event(3); docs/verbs.md.
"""

from typing import Final

from shared.verb_codes import HCA_DEVICE
from user_proc.process import UserProcess
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import IntLike, to_int
from user_proc.verbs.device_attributes import (
    CompCntrCaps,
    CQModerationCaps,
    DeviceAttr,
    DeviceAttrEx,
    ODPCaps,
    PacketPacingCaps,
    PCIAtomicCaps,
    QueryDeviceExInput,
    RSSCaps,
    TMCaps,
    TSOCaps,
)
from user_proc.verbs.device_context import AsyncEvent, Context
from user_proc.verbs.device_queries import swapped64
from user_proc.verbs.device_strings import (
    guid_format,
    guid_to_hex,
    phys_state_to_str,
    port_state_to_str,
    speed_to_str,
    str_from_flags,
    translate_device_caps,
    translate_event_type,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_node_type,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    translate_transport_type,
    width_to_str,
)
from user_proc.verbs.dm import DM, AllocDmAttr
from user_proc.verbs.libibverbs_enums import ibv_node_type, ibv_transport_type
from user_proc.verbs.port_attributes import GIDEntry, PortAttr
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

__all__ = [
    "DM",
    "AllocDmAttr",
    "AsyncEvent",
    "CQModerationCaps",
    "CompCntrCaps",
    "Context",
    "Device",
    "DeviceAttr",
    "DeviceAttrEx",
    "FdArr",
    "GIDEntry",
    "ODPCaps",
    "PCIAtomicCaps",
    "PacketPacingCaps",
    "PortAttr",
    "QueryDeviceExInput",
    "RSSCaps",
    "TMCaps",
    "TSOCaps",
    "get_device_list",
    "guid_format",
    "guid_to_hex",
    "phys_state_to_str",
    "port_state_to_str",
    "rdma_get_devices",
    "speed_to_str",
    "str_from_flags",
    "translate_device_caps",
    "translate_event_type",
    "translate_gid_type",
    "translate_link_layer",
    "translate_mtu",
    "translate_node_type",
    "translate_port_cap_flags",
    "translate_port_cap_flags2",
    "translate_transport_type",
    "width_to_str",
]


class Device(PyverbsObject):
    """A device there is; `name` is bytes, `guid` in host order."""

    def __init__(
        self, name: bytes, guid: int, node_type: int, transport_type: int, index: int
    ) -> None:
        super().__init__()
        self.name: Final = name
        self.guid: Final = guid
        self.node_type: Final = node_type
        self.transport_type: Final = transport_type
        self.index: Final = index

    def __str__(self) -> str:
        return (
            f"Device {self.index}: {self.name.decode()}, "
            f"Node type {translate_node_type(self.node_type)}, "
            f"Transport type {translate_transport_type(self.transport_type)}, "
            f"GUID {self.guid:016x}"
        )


class FdArr(PyverbsObject):
    """An array of descriptors."""

    def __init__(self, arr: list[int] | None = None, count: IntLike = 0) -> None:
        super().__init__()
        self.arr = [] if arr is None else list(arr)
        self.count = to_int(count)

    def close(self) -> None:
        """Forget them."""
        self.arr, self.count = [], 0


def get_device_list(
    *, kernel: str | None = None, process: UserProcess | None = None
) -> list[Device]:
    """List the devices of a kernel; empty if it has none."""
    try:
        context = Context(name=HCA_DEVICE, kernel=kernel, process=process)
    except PyverbsRDMAError as error:
        if str(error).startswith("Failed to find device"):
            return []
        raise PyverbsRDMAError("Failed to get devices list", reason=error.reason) from error
    with context:
        guid = swapped64(context.query_device().node_guid)
    return [
        Device(
            HCA_DEVICE.encode(),
            guid,
            int(ibv_node_type.IBV_NODE_CA),
            int(ibv_transport_type.IBV_TRANSPORT_IB),
            0,
        )
    ]


def rdma_get_devices() -> list[Device]:
    """List the devices as the connection manager does: the same."""
    return get_device_list()
