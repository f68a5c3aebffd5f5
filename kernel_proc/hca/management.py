"""Subnet management of the own ports, as MAD_IFC asks for it: get and set of attributes.

Spec: IBA vol. 1, 13.4 and 14.2.5.
"""

import struct
from collections.abc import Callable
from typing import Final

from kernel_proc.hca import port as ports
from kernel_proc.hca.port import Port
from kernel_proc.hca_abi import management_datagrams as mad
from kernel_proc.hca_abi.device_settings import GID_TABLE_LENGTH, PKEY_TABLE_LENGTH, HcaSettings

VENDOR_ID: Final = 0x2C9
DEVICE_ID: Final = 25218
REVISION: Final = 0xA0
_NODE_TYPE_CA: Final = 1
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_PKEYS: Final = struct.Struct(f">{mad.PKEYS_PER_BLOCK}H")
_GUIDS: Final = struct.Struct(f">{mad.GUIDS_PER_BLOCK}Q")
_SUBNET_TIMEOUT: Final = 18
_CLIENT_REREGISTER: Final = 0x80
_VLS: Final = 4  # code for VL0 to VL7


class _BadValue(Exception):
    """An attribute's value or modifier cannot be."""


class Management:
    """The agent of all ports of one node."""

    def __init__(self, settings: HcaSettings, node_ports: list[Port]) -> None:
        self._ports: Final = node_ports
        self._node_guid: Final = settings.node_guid
        self.system_image_guid = settings.node_guid
        self.description = b"SoftHCA".ljust(64, b"\0")
        self._attributes: Final[dict[tuple[int, int], Callable[[Port, int, bytes], bytes]]] = {
            (mad.METHOD_GET, mad.ATTRIBUTE_NODE_DESCRIPTION): self._get_description,
            (mad.METHOD_SET, mad.ATTRIBUTE_NODE_DESCRIPTION): self._set_description,
            (mad.METHOD_GET, mad.ATTRIBUTE_NODE_INFO): self._get_node_info,
            (mad.METHOD_GET, mad.ATTRIBUTE_PORT_INFO): self._get_port_info,
            (mad.METHOD_SET, mad.ATTRIBUTE_PORT_INFO): self._set_port_info,
            (mad.METHOD_GET, mad.ATTRIBUTE_GUID_INFO): self._get_guids,
            (mad.METHOD_SET, mad.ATTRIBUTE_GUID_INFO): self._set_guids,
            (mad.METHOD_GET, mad.ATTRIBUTE_PKEY_TABLE): self._get_pkeys,
            (mad.METHOD_SET, mad.ATTRIBUTE_PKEY_TABLE): self._set_pkeys,
        }

    def answer(self, port: Port, datagram: bytes) -> bytes | None:
        """Answer a datagram; None if it is not one of subnet management."""
        version, kind, class_version, method, _, hops, count, transaction, attribute, modifier = (
            mad.SMP_HEAD.unpack_from(datagram)
        )
        if version != mad.BASE_VERSION or kind != mad.CLASS_SUBNET_MANAGEMENT:
            return None
        data = datagram[mad.SMP_DATA_OFFSET : mad.SMP_DATA_OFFSET + mad.SMP_DATA_SIZE]
        status, answered = mad.MAD_STATUS_BAD_ATTRIBUTE, data
        handler = self._attributes.get((method, attribute))
        if handler is not None and class_version == mad.CLASS_VERSION:
            try:
                status, answered = mad.MAD_STATUS_OK, handler(port, modifier, data)
            except _BadValue:
                status = mad.MAD_STATUS_BAD_VALUE
        answer = bytearray(datagram)
        mad.SMP_HEAD.pack_into(
            answer, 0, version, kind, class_version, mad.METHOD_GET_RESPONSE, status, hops, count,
            transaction, attribute, modifier,
        )  # fmt: skip
        answer[mad.SMP_DATA_OFFSET : mad.SMP_DATA_OFFSET + mad.SMP_DATA_SIZE] = answered
        return bytes(answer)

    def _get_description(self, port: Port, modifier: int, data: bytes) -> bytes:
        return self.description

    def _set_description(self, port: Port, modifier: int, data: bytes) -> bytes:
        self.description = data
        return data

    def _get_node_info(self, port: Port, modifier: int, data: bytes) -> bytes:
        return mad.NODE_INFO.pack(
            mad.BASE_VERSION,
            mad.CLASS_VERSION,
            _NODE_TYPE_CA,
            len(self._ports),
            self.system_image_guid,
            self._node_guid,
            port.guid,
            PKEY_TABLE_LENGTH,
            DEVICE_ID & 0xFFFF,
            REVISION,
            port.number << 24 | VENDOR_ID,
        ).ljust(mad.SMP_DATA_SIZE, b"\0")

    def _named(self, port: Port, modifier: int) -> Port:
        """Return the port an attribute modifier names; 0 is the one asked at."""
        if modifier == 0:
            return port
        if modifier > len(self._ports):
            raise _BadValue
        return self._ports[modifier - 1]

    def _get_port_info(self, asked: Port, modifier: int, data: bytes) -> bytes:
        port = self._named(asked, modifier)
        up = port.state == ports.ACTIVE
        physical = ports.PHYSICAL_LINK_UP if up else ports.PHYSICAL_DISABLED
        info = bytearray(mad.SMP_DATA_SIZE)
        _U64.pack_into(info, mad.PORT_INFO_GID_PREFIX, port.gid_prefix)
        _U16.pack_into(info, mad.PORT_INFO_LID, port.lid)
        _U16.pack_into(info, mad.PORT_INFO_SM_LID, port.sm_lid)
        _U32.pack_into(info, mad.PORT_INFO_CAPABILITY_MASK, port.capabilities)
        info[mad.PORT_INFO_LINK_WIDTH_ACTIVE] = ports.WIDTH_4X
        info[mad.PORT_INFO_SPEED_SUPPORTED_STATE] = ports.SPEED_DDR << 4 | port.state
        info[mad.PORT_INFO_PHYSICAL_STATE] = physical << 4
        info[mad.PORT_INFO_LMC] = port.lmc
        info[mad.PORT_INFO_SPEED_ACTIVE] = ports.SPEED_DDR << 4
        info[mad.PORT_INFO_ACTIVE_MTU_SM_SL] = port.mtu << 4 | port.sm_sl
        info[mad.PORT_INFO_VL_CAPABILITY] = _VLS << 4
        info[mad.PORT_INFO_INIT_TYPE_REPLY_MTU_CAPABILITY] = port.max_mtu
        _U16.pack_into(info, mad.PORT_INFO_PKEY_VIOLATIONS, port.pkey_violations)
        _U16.pack_into(info, mad.PORT_INFO_QKEY_VIOLATIONS, port.qkey_violations)
        info[mad.PORT_INFO_GUID_CAPABILITY] = GID_TABLE_LENGTH
        info[mad.PORT_INFO_SUBNET_TIMEOUT] = _SUBNET_TIMEOUT
        return bytes(info)

    def _set_port_info(self, asked: Port, modifier: int, data: bytes) -> bytes:
        port = self._named(asked, modifier)
        lid = _U16.unpack_from(data, mad.PORT_INFO_LID)[0]
        sm_lid = _U16.unpack_from(data, mad.PORT_INFO_SM_LID)[0]
        state = data[mad.PORT_INFO_SPEED_SUPPORTED_STATE] & 0xF
        known_state = state in (0, ports.DOWN, ports.ACTIVE)  # 0: no change
        known_manager = sm_lid == ports.NO_LID or _is_unicast(sm_lid)
        if not known_state or not _is_unicast(lid) or not known_manager:
            raise _BadValue
        port.set_gid_prefix(_U64.unpack_from(data, mad.PORT_INFO_GID_PREFIX)[0])
        port.set_lid(lid, sm_lid, data[mad.PORT_INFO_ACTIVE_MTU_SM_SL] & 0xF)
        if state:
            port.set_state(state)
        if data[mad.PORT_INFO_SUBNET_TIMEOUT] & _CLIENT_REREGISTER:
            port.ask_to_reregister()
        return self._get_port_info(asked, modifier, data)

    def _get_guids(self, port: Port, modifier: int, data: bytes) -> bytes:
        first = _block(modifier, mad.GUIDS_PER_BLOCK, GID_TABLE_LENGTH)
        return _GUIDS.pack(*port.guids[first : first + mad.GUIDS_PER_BLOCK])

    def _set_guids(self, port: Port, modifier: int, data: bytes) -> bytes:
        first = _block(modifier, mad.GUIDS_PER_BLOCK, GID_TABLE_LENGTH)
        port.set_guids(first, list(_GUIDS.unpack(data)))
        return self._get_guids(port, modifier, data)

    def _get_pkeys(self, port: Port, modifier: int, data: bytes) -> bytes:
        first = _block(modifier, mad.PKEYS_PER_BLOCK, PKEY_TABLE_LENGTH)
        return _PKEYS.pack(*port.pkeys[first : first + mad.PKEYS_PER_BLOCK])

    def _set_pkeys(self, port: Port, modifier: int, data: bytes) -> bytes:
        first = _block(modifier, mad.PKEYS_PER_BLOCK, PKEY_TABLE_LENGTH)
        port.set_pkeys(first, list(_PKEYS.unpack(data)))
        return self._get_pkeys(port, modifier, data)


def _is_unicast(lid: int) -> bool:
    return ports.FIRST_UNICAST_LID <= lid <= ports.LAST_UNICAST_LID


def _block(modifier: int, size: int, length: int) -> int:
    if modifier * size >= length:
        raise _BadValue
    return modifier * size
