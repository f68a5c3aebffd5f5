"""What `softhca devinfo` tells of a device: asked of it once, then shown as lines or as JSON.

Labels are those of ibv_devinfo; a fact keeps its number or word for JSON and the text people read.
Facts of `-v` are marked.

Spec: ibv_devinfo(1); ibv_query_device(3), ibv_query_port(3).
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shared.verbs_enums import ibv_mtu, ibv_port_state
from user_proc.cli.columns import labelled
from user_proc.cli.extended_report import Fact, extended_facts, hexadecimal
from user_proc.verbs import device_strings as words
from user_proc.verbs.libibverbs_enums import (
    ibv_atomic_cap,
    ibv_device_cap_flags,
    ibv_port_cap_flags,
)

if TYPE_CHECKING:
    from user_proc.verbs.device import Context, Device
    from user_proc.verbs.device_attributes import DeviceAttr
    from user_proc.verbs.port_attributes import PortAttr

_PREFIX: Final = "IBV_"


class PortReport(NamedTuple):
    """One port; its GIDs and P_Keys by index, only those that are there."""

    facts: Sequence[Fact]
    gids: dict[int, str]
    pkeys: dict[int, int]


class DeviceReport(NamedTuple):
    """One device and the ports asked for."""

    facts: Sequence[Fact]
    ports: Sequence[PortReport]

    def as_dict(self, verbose: bool) -> dict[str, Any]:
        """Return it for JSON; flags are lists of names."""
        return {
            **{fact.label: fact.value for fact in _chosen(self.facts, verbose)},
            "ports": [_port_dict(port, verbose) for port in self.ports],
        }

    def lines(self, verbose: bool) -> Iterator[str]:
        """Give the lines for people."""
        first, *others = _chosen(self.facts, verbose)
        yield f"{first.label}: {first.shown}"
        yield from labelled(_pairs(others), 4)
        for port in self.ports:
            number, *facts = _chosen(port.facts, verbose)
            yield f"    {number.label}: {number.shown}"
            pairs = _pairs(facts)
            if verbose:
                pairs += [(f"GID[{index}]:", gid) for index, gid in port.gids.items()]
                pairs += [(f"P_Key[{index}]:", f"{key:#06x}") for index, key in port.pkeys.items()]
            yield from labelled(pairs, 8)


def read_device(device: "Device", context: "Context", port: int | None) -> DeviceReport:
    """Ask a device for all that is shown of it; `port` is the only one wanted, None for all."""
    attributes = context.query_device()
    numbers = range(1, attributes.phys_port_cnt + 1) if port is None else (port,)
    return DeviceReport(
        [*_device_facts(device, attributes), *extended_facts(context)],
        [_read_port(context, number) for number in numbers],
    )


def _read_port(context: "Context", number: int) -> PortReport:
    attributes = context.query_port(number)
    gids = {
        index: words_of_gid
        for index in range(attributes.gid_tbl_len)
        if any((words_of_gid := str(context.query_gid(number, index))).replace(":", "").strip("0"))
    }
    pkeys = {
        index: _host_order(key)
        for index in range(attributes.pkey_tbl_len)
        if (key := context.query_pkey(number, index))
    }
    return PortReport(_port_facts(number, attributes), gids, pkeys)


def _device_facts(device: "Device", attributes: "DeviceAttr") -> list[Fact]:
    transport = words.translate_transport_type(device.transport_type)
    name = "InfiniBand" if transport == "IB" else transport
    flags = attributes.device_cap_flags
    atomic = _named(attributes.atomic_caps, ibv_atomic_cap)
    shown: dict[str, Fact] = {
        "max_mr_size": hexadecimal("max_mr_size", attributes.max_mr_size),
        "page_size_cap": hexadecimal("page_size_cap", attributes.page_size_cap),
        "device_cap_flags": _flags("device_cap_flags", flags, ibv_device_cap_flags),
        "atomic_caps": Fact("atomic_cap", atomic, f"{atomic} ({attributes.atomic_caps})", True),
    }
    return [
        Fact("hca_id", device.name.decode()),
        Fact("transport", name, f"{name} ({device.transport_type})"),
        Fact("fw_ver", attributes.fw_version),
        _guid("node_guid", attributes.node_guid),
        _guid("sys_image_guid", attributes.sys_image_guid),
        Fact("vendor_id", attributes.vendor_id, f"{attributes.vendor_id:#06x}"),
        Fact("vendor_part_id", attributes.vendor_part_id),
        Fact("hw_ver", attributes.hw_ver, f"{attributes.hw_ver:#x}"),
        Fact("phys_port_cnt", attributes.phys_port_cnt),
        *(
            shown.get(name) or Fact(_LABELS.get(name, name), getattr(attributes, name), None, True)
            for name in _LIMITS
        ),
    ]


def _port_facts(number: int, port: "PortAttr") -> list[Fact]:
    state = _named(port.state, ibv_port_state)
    return [
        Fact("port", number),
        Fact("state", state, f"{state} ({port.state})"),
        Fact("max_mtu", _bytes_of(port.max_mtu), words.translate_mtu(port.max_mtu)),
        Fact("active_mtu", _bytes_of(port.active_mtu), words.translate_mtu(port.active_mtu)),
        Fact("sm_lid", port.sm_lid),
        Fact("port_lid", port.lid),
        Fact("port_lmc", port.lmc, f"{port.lmc:#04x}"),
        Fact("link_layer", words.translate_link_layer(port.link_layer)),
        hexadecimal("max_msg_sz", port.max_msg_sz),
        _flags("port_cap_flags", port.port_cap_flags, ibv_port_cap_flags),
        Fact("max_vl_num", port.max_vl_num, words.translate_max_vl_num(port.max_vl_num), True),
        Fact("bad_pkey_cntr", port.bad_pkey_cntr, None, True),
        Fact("qkey_viol_cntr", port.qkey_viol_cntr, None, True),
        Fact("sm_sl", port.sm_sl, None, True),
        Fact("pkey_tbl_len", port.pkey_tbl_len, None, True),
        Fact("gid_tbl_len", port.gid_tbl_len, None, True),
        Fact("subnet_timeout", port.subnet_timeout, None, True),
        Fact("init_type_reply", port.init_type_reply, None, True),
        Fact("active_width", *_number_and_words(words.width_to_str(port.active_width))),
        Fact("active_speed", *_number_and_words(_speed(port))),
        Fact("phys_state", *_number_and_words(words.phys_state_to_str(port.phys_state))),
    ]


_LIMITS: Final = (
    "max_mr_size", "page_size_cap", "max_qp", "max_qp_wr", "device_cap_flags", "max_sge",
    "max_sge_rd", "max_cq", "max_cqe", "max_mr", "max_pd", "max_qp_rd_atom", "max_ee_rd_atom",
    "max_res_rd_atom", "max_qp_init_rd_atom", "max_ee_init_rd_atom", "atomic_caps", "max_ee",
    "max_rdd", "max_mw", "max_raw_ipv6_qps", "max_raw_ethy_qp", "max_mcast_grp",
    "max_mcast_qp_attach", "max_ah", "max_fmr", "max_map_per_fmr", "max_srq", "max_srq_wr",
    "max_srq_sge", "max_pkeys", "local_ca_ack_delay",
)  # fmt: skip
_LABELS: Final = {"max_raw_ipv6_qps": "max_raw_ipv6_qp"}


def _speed(port: "PortAttr") -> str:
    return words.speed_to_str(port.active_speed, port.active_speed_ex)


def _number_and_words(text: str) -> tuple[str, str, bool]:
    """Split "4X (2)" into what JSON tells and what people read; of -v."""
    return text.partition(" (")[0], text, True


def _named(value: int, kind: type[IntEnum]) -> str:
    try:
        return kind(value).name.removeprefix(_PREFIX)
    except ValueError:
        return f"unknown {value}"


def _bytes_of(code: int) -> int | None:
    try:
        return int(ibv_mtu(code).name.rpartition("_")[2])
    except ValueError:
        return None


def _guid(label: str, guid: int) -> Fact:
    text = words.guid_format(guid)
    return Fact(label, text, text)


def _flags(label: str, flags: int, kind: Iterable[IntEnum]) -> Fact:
    names = [flag.name.removeprefix(_PREFIX) for flag in kind if flag and flags & flag]
    return Fact(label, names, f"{flags:#x}", True, names)


def _host_order(key: int) -> int:
    return int.from_bytes(key.to_bytes(2, "big"), "little")


def _chosen(facts: Sequence[Fact], verbose: bool) -> list[Fact]:
    return [fact for fact in facts if verbose or not fact.verbose]


def _pairs(facts: Sequence[Fact]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for fact in facts:
        pairs.append((f"{fact.label}:", fact.shown))
        pairs += [("", name) for name in fact.names]
    return pairs


def _port_dict(port: PortReport, verbose: bool) -> dict[str, Any]:
    values: dict[str, Any] = {fact.label: fact.value for fact in _chosen(port.facts, verbose)}
    if verbose:
        values["gids"] = [{"index": index, "gid": gid} for index, gid in port.gids.items()]
        values["pkeys"] = [{"index": index, "pkey": key} for index, key in port.pkeys.items()]
    return values
