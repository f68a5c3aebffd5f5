"""Addresses as values: GIDs, routes, headers, the attributes of a path.

Spec: rdma-core, pyverbs/addr.pyx; IBA vol. 1, 8.3 (global route header).
"""

from typing import Final

from user_proc.verbs.argument_types import optional, require
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_u8, to_u16, to_u32
from user_proc.verbs.printing import Line, lines
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.utils import GID_LENGTH, gid_of_text, text_of_gid

_NO_GID: Final = bytes(GID_LENGTH)


class GID(PyverbsObject):
    """A port's address of 16 bytes."""

    def __init__(self, val: str | None = None) -> None:
        super().__init__()
        self.raw = _NO_GID if val is None else gid_of_text(val)

    @classmethod
    def of(cls, raw: bytes) -> "GID":
        """Make one of 16 bytes in network order."""
        made = cls()
        made.raw = bytes(raw)
        return made

    @property
    def gid(self) -> str:
        """Its text."""
        return text_of_gid(self.raw)

    @gid.setter
    def gid(self, val: str) -> None:
        self.raw = gid_of_text(val)

    def __str__(self) -> str:
        return self.gid


class GlobalRoute(PyverbsObject):
    """What a packet that leaves the subnet needs."""

    flow_label = CField(to_u32)
    sgid_index = CField(to_u8)
    hop_limit = CField(to_u8)
    traffic_class = CField(to_u8)

    def __init__(
        self,
        dgid: GID | None = None,
        flow_label: IntLike = 0,
        sgid_index: IntLike = 0,
        hop_limit: IntLike = 1,
        traffic_class: IntLike = 0,
    ) -> None:
        super().__init__()
        given = optional("dgid", dgid, GID)
        self._dgid = _NO_GID if given is None else given.raw
        self.flow_label = flow_label
        self.sgid_index = sgid_index
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class

    @property
    def dgid(self) -> GID:
        """The destination."""
        return GID.of(self._dgid)

    @dgid.setter
    def dgid(self, dgid: GID) -> None:
        self._dgid = require("dgid", dgid, GID).raw

    def __str__(self) -> str:
        return lines(22, self.shown())

    def shown(self) -> list[Line]:
        """Give the fields with their labels."""
        return [
            ("DGID", self.dgid),
            ("flow label", self.flow_label),
            ("sgid index", self.sgid_index),
            ("hop limit", self.hop_limit),
            ("traffic class", self.traffic_class),
        ]


class GRH(PyverbsObject):
    """A global route header; its fields are stored as given."""

    version_tclass_flow = CField(to_u32)
    paylen = CField(to_u16)
    next_hdr = CField(to_u8)
    hop_limit = CField(to_u8)

    def __init__(
        self,
        sgid: GID | None = None,
        dgid: GID | None = None,
        version_tclass_flow: IntLike = 0,
        paylen: IntLike = 0,
        next_hdr: IntLike = 0,
        hop_limit: IntLike = 1,
    ) -> None:
        super().__init__()
        source, destination = optional("sgid", sgid, GID), optional("dgid", dgid, GID)
        self._sgid = _NO_GID if source is None else source.raw
        self._dgid = _NO_GID if destination is None else destination.raw
        self.version_tclass_flow = version_tclass_flow
        self.paylen = paylen
        self.next_hdr = next_hdr
        self.hop_limit = hop_limit

    @property
    def dgid(self) -> GID:
        """The destination."""
        return GID.of(self._dgid)

    @dgid.setter
    def dgid(self, val: GID) -> None:
        self._dgid = require("val", val, GID).raw

    @property
    def sgid(self) -> GID:
        """The source."""
        return GID.of(self._sgid)

    @sgid.setter
    def sgid(self, val: GID) -> None:
        self._sgid = require("val", val, GID).raw

    def __str__(self) -> str:
        return lines(
            22,
            [
                ("DGID", self.dgid),
                ("SGID", self.sgid),
                ("version tclass flow", self.version_tclass_flow),
                ("paylen", self.paylen),
                ("next header", self.next_hdr),
                ("hop limit", self.hop_limit),
            ],
        )


class AHAttr(PyverbsObject):
    """The attributes of an address handle, or of a queue pair's path.

    Unless `is_global`, the five properties of the route are None.
    """

    port_num = CField(to_u8)
    sl = CField(to_u8)
    src_path_bits = CField(to_u8)
    dlid = CField(to_u16)
    static_rate = CField(to_u8)
    is_global = CField(to_u8)

    def __init__(
        self,
        dlid: IntLike = 0,
        sl: IntLike = 0,
        src_path_bits: IntLike = 0,
        static_rate: IntLike = 0,
        is_global: IntLike = 0,
        port_num: IntLike = 1,
        gr: GlobalRoute | None = None,
    ) -> None:
        super().__init__()
        self.port_num = port_num
        self.sl = sl
        self.src_path_bits = src_path_bits
        self.dlid = dlid
        self.static_rate = static_rate
        self.is_global = is_global
        route = optional("gr", gr, GlobalRoute)
        self._route = GlobalRoute()
        if self.is_global:
            if route is None:
                raise PyverbsUserError("Global AH Attr is created but gr parameter is None")
            self._route = GlobalRoute(
                route.dgid, route.flow_label, route.sgid_index, route.hop_limit, route.traffic_class
            )

    @property
    def route(self) -> GlobalRoute:
        """The route as it is kept, used or not."""
        return self._route

    @property
    def dgid(self) -> GID | None:
        """The destination."""
        return self._route.dgid if self.is_global else None

    @dgid.setter
    def dgid(self, val: GID) -> None:
        destination = require("val", val, GID)
        if self.is_global:
            self._route.dgid = destination

    @property
    def flow_label(self) -> int | None:
        """The flow."""
        return self._route.flow_label if self.is_global else None

    @flow_label.setter
    def flow_label(self, val: IntLike) -> None:
        self._route.flow_label = val

    @property
    def sgid_index(self) -> int | None:
        """The source, an index of the port's GID table."""
        return self._route.sgid_index if self.is_global else None

    @sgid_index.setter
    def sgid_index(self, val: IntLike) -> None:
        self._route.sgid_index = val

    @property
    def hop_limit(self) -> int | None:
        """How many routers may forward it."""
        return self._route.hop_limit if self.is_global else None

    @hop_limit.setter
    def hop_limit(self, val: IntLike) -> None:
        self._route.hop_limit = val

    @property
    def traffic_class(self) -> int | None:
        """The class of service."""
        return self._route.traffic_class if self.is_global else None

    @traffic_class.setter
    def traffic_class(self, val: IntLike) -> None:
        self._route.traffic_class = val

    def copy(self) -> "AHAttr":
        """Make an equal one."""
        made = AHAttr(self.dlid, self.sl, self.src_path_bits, self.static_rate, 0, self.port_num)
        made.is_global = self.is_global
        route = self._route
        made._route = GlobalRoute(
            route.dgid, route.flow_label, route.sgid_index, route.hop_limit, route.traffic_class
        )
        return made

    def __str__(self) -> str:
        return lines(22, self.shown(), indent=2)

    def shown(self) -> list[Line]:
        """Give the fields with their labels."""
        fields: list[Line] = [
            ("port num", self.port_num),
            ("sl", self.sl),
            ("source path bits", self.src_path_bits),
            ("dlid", self.dlid),
            ("static rate", self.static_rate),
            ("is global", self.is_global),
        ]
        if self.is_global:
            fields += [
                ("dgid", self.dgid),
                ("flow label", self.flow_label),
                ("sgid index", self.sgid_index),
                ("hop limit", self.hop_limit),
                ("traffic_class", self.traffic_class),
            ]
        return fields
