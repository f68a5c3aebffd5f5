"""What a context can ask of its device, ports and their tables.

Rules: any thread; every query is a verb.
Spec: rdma-core, pyverbs/device.pyx; ibv_query_device(3), ibv_query_port(3), ibv_query_gid_ex(3).
"""

import errno
import struct
from typing import Any, ClassVar, Final, TypeVar

from shared.verb_codes import (
    IOCTL_QUERY_CLOCK,
    IOCTL_QUERY_DEVICE,
    IOCTL_QUERY_DEVICE_EX,
    IOCTL_QUERY_GID,
    IOCTL_QUERY_PKEY,
    IOCTL_QUERY_PORT,
)
from shared.verb_messages import (
    DeviceClock,
    PortQuery,
    QueryDevice,
    QueryDeviceEx,
    QueryGid,
    QueryPkey,
    QueryPort,
    VerbMessage,
)
from user_proc.verbs.address_attributes import GID
from user_proc.verbs.argument_types import optional
from user_proc.verbs.base import Parent
from user_proc.verbs.c_integers import IntLike, to_int, to_u8, to_u16, to_u32
from user_proc.verbs.device_attributes import DeviceAttr, DeviceAttrEx, QueryDeviceExInput
from user_proc.verbs.libibverbs_enums import ibv_gid_type, ibv_values_mask
from user_proc.verbs.port_attributes import GIDEntry, PortAttr
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.utils import GID_LENGTH
from user_proc.verbs.verb_session import VerbRefusal, VerbSession

_M = TypeVar("_M")

_RAW_CLOCK: Final = int(ibv_values_mask.IBV_VALUES_MASK_RAW_CLOCK)
_LANES: Final = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_SPEEDS: Final = {1: 25, 2: 50, 4: 100, 8: 100, 16: 140, 32: 250, 64: 500, 128: 1000, 256: 2000}


class DeviceQueries(Parent):
    """The queries of a context."""

    KIND: ClassVar[str] = "Context"

    def __init__(self, name: str) -> None:
        self._session: VerbSession | None = None
        super().__init__()
        self.name: Final = name

    def session(self) -> VerbSession:
        """Give the opening itself; PyverbsUserError when it is closed."""
        session = self._session
        if session is None:
            raise PyverbsUserError("the Context is closed")
        return session

    def query_device(self) -> DeviceAttr:
        """Query the device's attributes."""
        return _device_attributes(self._ask(f"device {self.name}", QueryDevice, IOCTL_QUERY_DEVICE))

    def query_device_ex(self, ex_input: QueryDeviceExInput | None = None) -> DeviceAttrEx:
        """Query the extended attributes; of what the device lacks all is 0."""
        given, text = optional("ex_input", ex_input, QueryDeviceExInput), f"EX device {self.name}"
        if given is not None and given.comp_mask:
            raise PyverbsRDMAError(
                f"Failed to query {text}", errno.EINVAL, reason="comp_mask of the input must be 0"
            )
        answer = self._ask(text, QueryDevice, IOCTL_QUERY_DEVICE)
        further = self._ask(text, QueryDeviceEx, IOCTL_QUERY_DEVICE_EX)
        made = DeviceAttrEx.of({**_fields(further), "phys_port_cnt_ex": answer.phys_port_cnt})
        made.orig_attr = _device_attributes(answer)
        return made

    def query_port(self, port_num: IntLike) -> PortAttr:
        """Query a port's attributes."""
        port = to_u8(port_num)
        answer = self._ask(f"port {port}", QueryPort, IOCTL_QUERY_PORT, PortQuery(port))
        return PortAttr.of(_fields(answer))

    def query_port_speed(self, port_num: IntLike) -> int:
        """Give a port's rate in units of 100 Mb/s."""
        port = to_u8(port_num)
        answer = self._ask(
            f"port speed for port {port}", QueryPort, IOCTL_QUERY_PORT, PortQuery(port)
        )
        return _LANES.get(answer.active_width, 0) * _SPEEDS.get(answer.active_speed, 0)

    def query_gid(self, port_num: IntLike, index: IntLike) -> GID:
        """Query an entry of a port's GID table; an empty one is all zeros."""
        port, number = to_u8(port_num), to_int(index)
        text = f"gid {number} of port {port}"
        return GID.of(self._gid(text, port, number, with_errno=False))

    def query_gid_type(self, port_num: IntLike, index: IntLike) -> int:
        """Query the kind of an entry of a port's GID table."""
        port, number = to_u8(port_num), to_u32(index)
        self._gid(f"gid type of port {port} and gid index {number}", port, number)
        return 0

    def query_gid_ex(self, port_num: IntLike, gid_index: IntLike, flags: IntLike = 0) -> GIDEntry:
        """Query an entry of a port's GID table with all that belongs to it."""
        port, number = to_u32(port_num), to_u32(gid_index)
        text = f"gid table of port {port} in index {number}"
        if to_u32(flags):
            raise PyverbsRDMAError(
                f"Failed to query {text}", errno.EINVAL, reason="flags must be 0"
            )
        raw = self._gid(text, port, number)
        if not any(raw):
            raise PyverbsRDMAError(
                f"Failed to query {text}", errno.ENODATA, reason="the entry is empty"
            )
        return _entry(raw, port, number)

    def query_gid_table(self, max_entries: IntLike, flags: IntLike = 0) -> list[GIDEntry]:
        """Query every GID there is; the error's code is a negative errno, as in libibverbs."""
        most, text = to_int(max_entries), "Failed to query gid tables of the device"
        if to_u32(flags):
            raise PyverbsRDMAError(text, -errno.EINVAL, reason="flags must be 0")
        found: list[GIDEntry] = []
        try:
            for port in range(1, self.session().opened.ports + 1):
                answer = self.session().call(QueryPort, IOCTL_QUERY_PORT, PortQuery(port))
                for index in range(answer.gid_tbl_len):
                    raw = self.session().call(QueryGid, IOCTL_QUERY_GID, PortQuery(port, index)).gid
                    if any(raw):
                        found.append(_entry(raw, port, index))
        except VerbRefusal as refusal:
            raise PyverbsRDMAError(text, -refusal.errno, reason=refusal.reason) from refusal
        if len(found) > most:
            raise PyverbsRDMAError(
                text, -errno.EINVAL, reason=f"there are {len(found)} entries, more than {most}"
            )
        return found

    def query_pkey(self, port_num: IntLike, index: IntLike) -> int:
        """Query an entry of a port's P_Key table, in network order."""
        port, number = to_u32(port_num), to_int(index)
        return _swapped(self._pkey(f"pkey {number} of port {port}", port, number))

    def get_pkey_index(self, port_num: IntLike, pkey: IntLike) -> int:
        """Find a P_Key, given in network order, in a port's table."""
        port, key = to_u32(port_num), to_u16(pkey)
        text = f"Failed to get pkey index of pkey = {key} of port {port}"
        try:
            table = self.session().call(QueryPort, IOCTL_QUERY_PORT, PortQuery(port)).pkey_tbl_len
            for index in range(table):
                answer = self.session().call(QueryPkey, IOCTL_QUERY_PKEY, PortQuery(port, index))
                if _swapped(answer.pkey) == key:
                    return index
        except VerbRefusal as refusal:
            raise PyverbsRDMAError(text, reason=refusal.reason) from refusal
        raise PyverbsRDMAError(text, reason="the port's table does not hold it")

    def query_rt_values_ex(self, comp_mask: IntLike = 1) -> tuple[int, int]:
        """Read the device's clock: seconds, always 0, and ticks, in which completions are stamped.

        A tick is a nanosecond (`hca_core_clock` says so).
        """
        text, mask = "Failed to query real time values", to_u32(comp_mask)
        if mask & ~_RAW_CLOCK:
            raise PyverbsRDMAError(
                text, errno.EOPNOTSUPP, reason="the device has no more than its raw clock"
            )
        try:
            clock = self.session().call(DeviceClock, IOCTL_QUERY_CLOCK)
        except VerbRefusal as refusal:
            raise refusal.error(text) from refusal
        return 0, clock.raw_ns if mask else 0

    def find_gid(self, port: int, raw: bytes) -> int | None:
        """Give the index of a GID in a port's table, None if it is not there."""
        for entry in self.query_gid_table(1 << 16):
            if entry.port_num == port and _raw(entry) == raw:
                return entry.gid_index
        return None

    # Asking

    def _ask(self, text: str, reply: type[_M], code: int, request: VerbMessage | None = None) -> _M:
        try:
            return self.session().call(reply, code, request)
        except VerbRefusal as refusal:
            raise refusal.error(f"Failed to query {text}") from refusal

    def _gid(self, text: str, port: int, index: int, with_errno: bool = True) -> bytes:
        request = PortQuery(port, index & 0xFFFF_FFFF)
        try:
            raw = self.session().call(QueryGid, IOCTL_QUERY_GID, request).gid
        except VerbRefusal as refusal:
            if with_errno:
                raise refusal.error(f"Failed to query {text}") from refusal
            raise PyverbsRDMAError(f"Failed to query {text}", reason=refusal.reason) from refusal
        return raw.ljust(GID_LENGTH, b"\0")

    def _pkey(self, text: str, port: int, index: int) -> int:
        request = PortQuery(port, index & 0xFFFF_FFFF)
        try:
            return self.session().call(QueryPkey, IOCTL_QUERY_PKEY, request).pkey
        except VerbRefusal as refusal:
            raise PyverbsRDMAError(f"Failed to query {text}", reason=refusal.reason) from refusal


def _fields(message: Any) -> dict[str, Any]:
    return dict(message._asdict())


def _device_attributes(answer: QueryDevice) -> DeviceAttr:
    values = _fields(answer)
    values["node_guid"] = swapped64(answer.node_guid)
    values["sys_image_guid"] = swapped64(answer.sys_image_guid)
    values["atomic_caps"] = answer.atomic_cap
    return DeviceAttr.of(values)


def _swapped(key: int) -> int:
    return int.from_bytes((key & 0xFFFF).to_bytes(2, "big"), "little")


def swapped64(guid: int) -> int:
    """Turn a GUID into the other byte order."""
    return int.from_bytes(guid.to_bytes(8, "big"), "little")


def _entry(raw: bytes, port: int, index: int) -> GIDEntry:
    prefix, interface = struct.unpack("=QQ", raw)
    return GIDEntry(prefix, interface, index, port, int(ibv_gid_type.IBV_GID_TYPE_IB))


def _raw(entry: GIDEntry) -> bytes:
    return struct.pack("=QQ", entry.gid_subnet_prefix, entry.gid_interface_id)
