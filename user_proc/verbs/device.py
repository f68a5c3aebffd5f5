"""Devices, the contexts in which they are used, and their asynchronous events.

    with Context(name="mthca0") as context: ...

The kernel is the one named by `kernel`, by the environment variable SOFTHCA_NAME, or the default
one; `process` is a connection the program has already.

Rules: any thread. After a fork the child opens a context of its own.
Spec: rdma-core, pyverbs/device.pyx; ibv_open_device(3), ibv_get_async_event(3); docs/verbs.md.
"""

import errno
import os
import struct
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from shared.nt_status import (
    STATUS_INVALID_DEVICE_REQUEST,
    STATUS_NO_SUCH_DEVICE,
    STATUS_OBJECT_NAME_NOT_FOUND,
)
from shared.verb_codes import (
    HCA_DEVICE,
    IOCTL_QUERY_DEVICE,
    IOCTL_QUERY_GID,
    IOCTL_QUERY_PKEY,
    IOCTL_QUERY_PORT,
)
from shared.verb_messages import (
    PortQuery,
    QueryDevice,
    QueryGid,
    QueryPkey,
    QueryPort,
    VerbMessage,
)
from shared.verbs_enums import ibv_gid_type, ibv_node_type, ibv_transport_type
from user_proc.errors import NtStatusError, SofthcaError
from user_proc.process import UserProcess
from user_proc.verbs.address_attributes import GID
from user_proc.verbs.argument_types import optional
from user_proc.verbs.base import Parent, PyverbsObject
from user_proc.verbs.c_integers import IntLike, to_int, to_u8, to_u16, to_u32
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
from user_proc.verbs.kernel_connection import join_kernel
from user_proc.verbs.port_attributes import GIDEntry, PortAttr
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.session_events import AsynchronousEvent, SessionEvents
from user_proc.verbs.utils import GID_LENGTH
from user_proc.verbs.verb_session import FORKED, VerbRefusal, VerbSession

__all__ = [
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

_M = TypeVar("_M")

_LANES: Final = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_SPEEDS: Final = {1: 25, 2: 50, 4: 100, 8: 100, 16: 140, 32: 250, 64: 500, 128: 1000, 256: 2000}
_NOT_THERE: Final = (STATUS_OBJECT_NAME_NOT_FOUND, STATUS_INVALID_DEVICE_REQUEST)


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


class AsyncEvent(PyverbsObject):
    """An asynchronous event; destroying the object it names waits until it is acknowledged."""

    def __init__(self, event_type: IntLike = 0) -> None:
        super().__init__()
        self.event_type: Final = to_int(event_type)
        self._unread: AsynchronousEvent | None = None

    def ack(self) -> None:
        """Acknowledge it; a second time changes nothing."""
        event, self._unread = self._unread, None
        if event is not None and event.about is not None:
            event.about.asynchronous.acknowledge(1)

    @classmethod
    def of(cls, event: AsynchronousEvent) -> "AsyncEvent":
        """Make what the program gets of a queued event."""
        made = cls(event.event_type)
        made._unread = event
        return made

    def __str__(self) -> str:
        return lines(24, [("Event Type", translate_event_type(self.event_type))])


class FdArr(PyverbsObject):
    """An array of descriptors."""

    def __init__(self, arr: list[int] | None = None, count: IntLike = 0) -> None:
        super().__init__()
        self.arr = [] if arr is None else list(arr)
        self.count = to_int(count)

    def close(self) -> None:
        """Forget them."""
        self.arr, self.count = [], 0


class Context(Parent):
    """An opening of a device: what all other objects are made on."""

    KIND: ClassVar[str] = "Context"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("QP", "CompChannel", "CQ", "PD", "SRQ", "XRCD")

    def __init__(
        self,
        *,
        name: str | None = None,
        kernel: str | None = None,
        process: UserProcess | None = None,
    ) -> None:
        self._session: VerbSession | None = None
        super().__init__()
        if name is None:
            raise PyverbsUserError("Device name must be provided")
        self.name: Final = str(name)
        optional("process", process, UserProcess)
        try:
            self._connection: Final = join_kernel(kernel, process)
        except SofthcaError as error:
            raise PyverbsRDMAError(f"Failed to open device {name}", reason=str(error)) from error
        try:
            self._open()
        except BaseException:
            self._connection.leave()
            raise
        self.logger.debug("Opened device %s", name)

    def _open(self) -> None:
        name, process = self.name, self._connection.process
        try:
            doorbells = self._connection.doorbells()
            device = process.open_device(name, overlapped=True)
        except NtStatusError as error:
            self._refuse(error.status, error)
        except SofthcaError as error:
            raise PyverbsRDMAError(
                f"Failed to open device {name}", errno.EIO, reason=str(error)
            ) from error
        try:
            try:
                session = VerbSession(process, device, doorbells)
                self.events = SessionEvents(session)
            except VerbRefusal as refusal:
                if isinstance(refusal.__cause__, NtStatusError):
                    self._refuse(refusal.__cause__.status, refusal.__cause__)
                raise refusal.error(f"Failed to open device {name}") from refusal
        except BaseException:
            device.close()
            raise
        self._session = session

    def _refuse(self, status: int, error: NtStatusError) -> NoReturn:
        """Raise for a device that cannot be opened, or is no HCA."""
        if status in _NOT_THERE:
            raise PyverbsRDMAError(f"Failed to find device {self.name}") from error
        if status == STATUS_NO_SUCH_DEVICE:
            raise PyverbsRDMAError(
                f"Failed to find device {self.name}", reason=str(error)
            ) from error
        raise PyverbsRDMAError(
            f"Failed to open device {self.name}", error.errno or errno.EIO, reason=str(error)
        ) from error

    def session(self) -> VerbSession:
        """Give the opening itself; PyverbsUserError when it is closed."""
        session = self._session
        if session is None:
            raise PyverbsUserError("the Context is closed")
        return session

    @property
    def context(self) -> int:
        """The kernel's handle of the file: there is no C structure with an address."""
        return self.session().device.handle

    @property
    def num_comp_vectors(self) -> int:
        """Completion vectors."""
        return self.session().opened.completion_vectors

    # Queries

    def query_device(self) -> DeviceAttr:
        """Query the device's attributes."""
        return _device_attributes(self._ask(f"device {self.name}", QueryDevice, IOCTL_QUERY_DEVICE))

    def query_device_ex(self, ex_input: QueryDeviceExInput | None = None) -> DeviceAttrEx:
        """Query the extended attributes; this device has no more than the plain ones."""
        optional("ex_input", ex_input, QueryDeviceExInput)
        answer = self._ask(f"EX device {self.name}", QueryDevice, IOCTL_QUERY_DEVICE)
        made = DeviceAttrEx.of(
            {
                "device_cap_flags_ex": answer.device_cap_flags,
                "phys_port_cnt_ex": answer.phys_port_cnt,
            }
        )
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
        """Refuse: the device has no clock to be read."""
        to_u32(comp_mask)
        self.session()
        raise PyverbsRDMAError(
            "Failed to query real time values",
            errno.EOPNOTSUPP,
            reason="the device has no clock that can be read",
        )

    def find_gid(self, port: int, raw: bytes) -> int:
        """Give the index of a GID in a port's table, 0 if it is not there (a multicast GID)."""
        for entry in self.query_gid_table(1 << 16):
            if entry.port_num == port and _raw(entry) == raw:
                return entry.gid_index
        return 0

    # Asynchronous events

    @property
    def async_fd(self) -> int:
        """A descriptor that is readable exactly while an asynchronous event waits."""
        session = self.session()
        if session.trouble and not session.dead:
            raise session.trouble_error("Failed to get async event")
        self._want_events()
        return self.events.asynchronous.fd

    def get_async_event(self) -> AsyncEvent:
        """Take the oldest asynchronous event, waiting for one; it must be acknowledged.

        With `async_fd` set non-blocking, EAGAIN when none waits.
        """
        session, text = self.session(), "Failed to get async event"
        if session.trouble and not session.dead:
            raise session.trouble_error(text)
        self._want_events()
        queue = self.events.asynchronous
        event = queue.take()
        if event is None and not os.get_blocking(queue.fd):
            raise PyverbsRDMAError(text, errno.EAGAIN, reason="no event waits")
        if event is None:
            event = self.events.wait_for(queue)
        if event is None:
            raise session.trouble_error(text)
        return AsyncEvent.of(event)

    def _want_events(self) -> None:
        if self.session().dead:
            return  # what has come can still be taken
        try:
            self.events.want_asynchronous()
        except VerbRefusal as refusal:
            raise refusal.error("Failed to get async event") from refusal

    # The end

    def close(self) -> None:
        """Close every object of the context, then the device."""
        with self._closing:
            session = self._session
            if session is None:
                return
            if session.trouble == FORKED:
                raise PyverbsUserError(f"the Context cannot be closed: {FORKED}")
            self._close_children()
            self.events.close()
            try:
                session.close()
            except SofthcaError as error:
                raise PyverbsRDMAError(
                    f"Failed to close device {self.name}", errno.EIO, reason=str(error)
                ) from error
            self._session = None
            self.events.release()
            self._connection.leave()
            self.logger.debug("Closed device %s", self.name)

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and session.trouble != FORKED:
            self._session = None
            self.events.pump.abandon()
            self._connection.forgotten.append(session.device)

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
        guid = _swapped64(context.query_device().node_guid)
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


def _fields(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__slots__}


def _device_attributes(answer: QueryDevice) -> DeviceAttr:
    values = _fields(answer)
    values["node_guid"] = _swapped64(answer.node_guid)
    values["sys_image_guid"] = _swapped64(answer.sys_image_guid)
    values["atomic_caps"] = answer.atomic_cap
    return DeviceAttr.of(values)


def _swapped(key: int) -> int:
    return int.from_bytes((key & 0xFFFF).to_bytes(2, "big"), "little")


def _swapped64(guid: int) -> int:
    return int.from_bytes(guid.to_bytes(8, "big"), "little")


def _entry(raw: bytes, port: int, index: int) -> GIDEntry:
    prefix, interface = struct.unpack("=QQ", raw)
    return GIDEntry(prefix, interface, index, port, int(ibv_gid_type.IBV_GID_TYPE_IB))


def _raw(entry: GIDEntry) -> bytes:
    return struct.pack("=QQ", entry.gid_subnet_prefix, entry.gid_interface_id)
