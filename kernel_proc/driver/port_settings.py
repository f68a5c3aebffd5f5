"""What a subnet manager sets of a port: P_Keys, GUIDs, LID, GID prefix; each change is an event.

There is no subnet manager: whoever asks the control device is one. An attribute is read, changed
and set, so its caller lets nobody else set one meanwhile.

Rules: PASSIVE_LEVEL; each waits for two commands.
Spec: IBA vol. 1, 14.2.5 (attributes), 14.4.4 (client reregistration); docs/hca-process.md.
"""

import errno
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.subnet_queries import query_attribute, set_attribute
from kernel_proc.hca_abi import management_datagrams as mad
from shared.verb_codes import PortSetting
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.hca_driver import HcaDriver

_U16: Final = struct.Struct(">H")
_U64: Final = struct.Struct(">Q")
_STATE: Final = 0x0F  # in the byte of speed and state; 0 changes nothing
_REREGISTER: Final = 0x80  # in the byte of the subnet timeout
_OWN_GUID: Final = 0


def set_port(driver: "HcaDriver", port: int, setting: int, index: int, value: int) -> None:
    """Set one thing of a port; EINVAL for what there is not, EIO on a dead HCA."""
    if driver.dead:
        raise VerbRefused(errno.EIO, VerbReason.DEVICE_FATAL)
    ports = driver.limits.ports
    if not 1 <= port <= ports:
        raise VerbRefused(errno.EINVAL, VerbReason.NO_SUCH_PORT, port, ports)
    if setting not in _SETTERS:
        raise VerbRefused(errno.EINVAL, VerbReason.BAD_PORT_SETTING, setting, value)
    _SETTERS[setting](driver, port, index, value)


def _set_pkey(driver: "HcaDriver", port: int, index: int, value: int) -> None:
    _require(value <= 0xFFFF, PortSetting.PKEY, value)
    _require_index(index, driver.limits.device.pkey_table_length)
    block, place = divmod(index, mad.PKEYS_PER_BLOCK)
    _change(driver, mad.ATTRIBUTE_PKEY_TABLE, block, port, _U16, place * _U16.size, value)


def _set_guid(driver: "HcaDriver", port: int, index: int, value: int) -> None:
    _require(index != _OWN_GUID, PortSetting.GUID, value)
    _require_index(index, driver.limits.device.gid_table_length)
    block, place = divmod(index, mad.GUIDS_PER_BLOCK)
    _change(driver, mad.ATTRIBUTE_GUID_INFO, block, port, _U64, place * _U64.size, value)


def _set_lid(driver: "HcaDriver", port: int, index: int, value: int) -> None:
    _require(value <= 0xFFFF, PortSetting.LID, value)
    _change(driver, mad.ATTRIBUTE_PORT_INFO, port, port, _U16, mad.PORT_INFO_LID, value)


def _set_prefix(driver: "HcaDriver", port: int, index: int, value: int) -> None:
    _change(driver, mad.ATTRIBUTE_PORT_INFO, port, port, _U64, mad.PORT_INFO_GID_PREFIX, value)


def _ask_to_reregister(driver: "HcaDriver", port: int, index: int, value: int) -> None:
    info = _port_info(driver, port)
    info[mad.PORT_INFO_SUBNET_TIMEOUT] |= _REREGISTER
    set_attribute(driver, mad.ATTRIBUTE_PORT_INFO, port, port, bytes(info))


def _change(
    driver: "HcaDriver",
    attribute: int,
    modifier: int,
    port: int,
    layout: struct.Struct,
    offset: int,
    value: int,
) -> None:
    if attribute == mad.ATTRIBUTE_PORT_INFO:
        data = _port_info(driver, port)
    else:
        data = bytearray(query_attribute(driver, attribute, modifier, port))
    layout.pack_into(data, offset, value)
    set_attribute(driver, attribute, modifier, port, bytes(data))


def _port_info(driver: "HcaDriver", port: int) -> bytearray:
    """Return PortInfo as it is set: without a change of the port's state."""
    info = bytearray(query_attribute(driver, mad.ATTRIBUTE_PORT_INFO, port, port))
    info[mad.PORT_INFO_SPEED_SUPPORTED_STATE] &= ~_STATE & 0xFF
    return info


def _require(is_well: bool, setting: PortSetting, value: int) -> None:
    if not is_well:
        raise VerbRefused(errno.EINVAL, VerbReason.BAD_PORT_SETTING, setting, value)


def _require_index(index: int, length: int) -> None:
    if index >= length:
        raise VerbRefused(errno.EINVAL, VerbReason.NO_SUCH_INDEX, index, length)


_SETTERS: Final[dict[int, Callable[["HcaDriver", int, int, int], None]]] = {
    PortSetting.PKEY: _set_pkey,
    PortSetting.GUID: _set_guid,
    PortSetting.LID: _set_lid,
    PortSetting.GID_PREFIX: _set_prefix,
    PortSetting.REREGISTER: _ask_to_reregister,
}
