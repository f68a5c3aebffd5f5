"""Fields and values: every field against every kind of bad value, labels, defaults, copies."""

import copy
import re
from typing import Any

import pytest

from user_proc.verbs import device
from user_proc.verbs.addr import GID, GRH, AHAttr, GlobalRoute
from user_proc.verbs.base import PyverbsCM, PyverbsObject, PyverbsRDMAErrno, inc_rkey
from user_proc.verbs.cq import WC
from user_proc.verbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.qp import QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from user_proc.verbs.srq import SrqAttr, SrqInitAttr, SrqInitAttrEx
from user_proc.verbs.wr import SGE, RecvWR, SendWR
from user_proc.verbs.xrcd import XRCDInitAttr

U8, U16, U32, U64 = (
    ("unsigned char", 8),
    ("unsigned short", 16),
    ("unsigned int", 32),
    ("unsigned long", 64),
)
INT = ("int", 31)

FIELDS: list[tuple[Any, tuple[str, int], str]] = [
    (lambda: AHAttr(), U8, "port_num sl src_path_bits static_rate is_global"),
    (lambda: AHAttr(), U16, "dlid"),
    (lambda: GlobalRoute(), U8, "sgid_index hop_limit traffic_class"),
    (lambda: GlobalRoute(), U32, "flow_label"),
    (lambda: GRH(), U8, "next_hdr hop_limit"),
    (lambda: GRH(), U16, "paylen"),
    (lambda: GRH(), U32, "version_tclass_flow"),
    (lambda: WC(), U64, "wr_id"),
    (lambda: WC(), U32, "vendor_err byte_len qp_num src_qp imm_data wc_flags"),
    (lambda: WC(), U16, "pkey_index slid"),
    (lambda: WC(), U8, "sl dlid_path_bits"),
    (lambda: WC(), INT, "status opcode"),
    (lambda: QPCap(), U32, "max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data"),
    (lambda: QPInitAttr(), INT, "qp_type sq_sig_all"),
    (lambda: QPInitAttr(), U32, "max_send_wr max_recv_wr max_send_sge max_recv_sge"),
    (lambda: QPInitAttrEx(), U32, "comp_mask create_flags source_qpn max_inline_data"),
    (lambda: QPInitAttrEx(), U16, "max_tso_header"),
    (lambda: QPAttr(), INT, "qp_state cur_qp_state path_mtu path_mig_state"),
    (lambda: QPAttr(), U32, "qkey rq_psn sq_psn dest_qp_num qp_access_flags rate_limit"),
    (lambda: QPAttr(), U16, "pkey_index alt_pkey_index"),
    (
        lambda: QPAttr(),
        U8,
        "en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num "
        "timeout retry_cnt rnr_retry alt_port_num alt_timeout",
    ),
    (lambda: SrqAttr(), U32, "max_wr max_sge srq_limit"),
    (lambda: SrqInitAttrEx(), U32, "comp_mask max_num_tags max_ops"),
    (lambda: XRCDInitAttr(0, 0, 0), U32, "comp_mask"),
    (lambda: XRCDInitAttr(0, 0, 0), INT, "oflags fd"),
    (lambda: SGE(0, 0, 0), U64, "addr"),
    (lambda: SGE(0, 0, 0), U32, "length lkey"),
    (lambda: RecvWR(), U64, "wr_id"),
    (lambda: SendWR(num_sge=1, sg=[SGE(0, 0, 0)]), U32, "imm_data send_flags"),
    (lambda: SendWR(num_sge=1, sg=[SGE(0, 0, 0)]), INT, "opcode"),
    (lambda: device.GIDEntry(), U64, "gid_subnet_prefix gid_interface_id"),
    (lambda: device.GIDEntry(), U32, "gid_index port_num gid_type ndev_ifindex"),
]
EACH = [
    pytest.param(make, kind, name, id=f"{type(make()).__name__}.{name}")
    for make, kind, names in FIELDS
    for name in names.split()
]


class Number:
    """An object that says which integer it is."""

    def __int__(self) -> int:
        return 3


@pytest.mark.parametrize(("make", "kind", "name"), EACH)
def test_a_field_takes_what_fits_and_refuses_the_rest(make: Any, kind: tuple[str, int], name: str):
    c_type, bits = kind
    holder = make()
    largest = (1 << bits) - 1
    good: list[tuple[Any, int]] = [(0, 0), (largest, largest), (True, 1), (1.9, 1), (Number(), 3)]
    for value, stored in good:
        setattr(holder, name, value)
        assert getattr(holder, name) == stored
        assert type(getattr(holder, name)) is int
    before = getattr(holder, name)
    for text in ("1", b"1", bytearray(b"1"), None, [], object()):
        with pytest.raises(TypeError, match="an integer is required"):
            setattr(holder, name, text)
    with pytest.raises(ValueError, match="NaN"):
        setattr(holder, name, float("nan"))
    with pytest.raises(OverflowError):
        setattr(holder, name, float("inf"))
    words = (
        f"Python int too large to convert to C {c_type}"
        if bits == 64
        else f"value too large to convert to {c_type}"
    )
    with pytest.raises(OverflowError, match=f"^{words}$"):
        setattr(holder, name, largest + 1)
    if kind is INT:
        setattr(holder, name, -largest - 1)
        assert getattr(holder, name) == -largest - 1
        with pytest.raises(OverflowError, match="value too large to convert to int"):
            setattr(holder, name, -largest - 2)
        return
    with pytest.raises(OverflowError, match=f"^can't convert negative value to {c_type}$"):
        setattr(holder, name, -1)
    assert getattr(holder, name) == before


LABELS: list[tuple[Any, str]] = [
    (
        device.DeviceAttr.of({"fw_version": "1"}),
        "FW version|Node guid|Sys image GUID|Max MR size|Page size cap|Vendor ID|Vendor part ID|"
        "HW version|Max QP|Max QP WR|Device cap flags|Max SGE|Max SGE RD|MAX CQ|Max CQE|Max MR|"
        "Max PD|Max QP RD atom|Max EE RD atom|Max res RD atom|Max QP init RD atom|"
        "Max EE init RD atom|Atomic caps|Max EE|Max RDD|Max MW|Max raw IPv6 QPs|Max raw ethy QP|"
        "Max mcast group|Max mcast QP attach|Max AH|Max FMR|Max map per FMR|Max SRQ|Max SRQ WR|"
        "Max SRQ SGE|Max PKeys|local CA ack delay|Phys port count",
    ),
    (
        device.PortAttr(),
        "Port state|Max MTU|Active MTU|SM lid|Port lid|lmc|Link layer|Max message size|"
        "Port cap flags|Port cap flags 2|max VL num|Bad Pkey counter|Qkey violations counter|"
        "GID table len|Pkey table len|SM sl|Subnet timeout|Init type reply|Active width|"
        "Active speed|Phys state|Flags",
    ),
    (device.GIDEntry(), "GID|GID Index|Port number|GID type|Ndev ifindex"),
    (device.AsyncEvent(3), "Event Type"),
    (GlobalRoute(), "DGID|flow label|sgid index|hop limit|traffic class"),
    (GRH(), "DGID|SGID|version tclass flow|paylen|next header|hop limit"),
    (AHAttr(), "port num|sl|source path bits|dlid|static rate|is global"),
    (
        AHAttr(is_global=1, gr=GlobalRoute()),
        "port num|sl|source path bits|dlid|static rate|is global|dgid|flow label|sgid index|"
        "hop limit|traffic_class",
    ),
    (QPCap(), "max send wrs|max recv wrs|max send sges|max recv sges|max inline data"),
    (
        QPInitAttr(),
        "QP type|SQ sig. all|QP caps|max send WR|max recv WR|max send SGE|max recv SGE|"
        "max inline data",
    ),
    (
        QPInitAttrEx(),
        "QP type|SQ sig. all|QP caps|max send WR|max recv WR|max send SGE|max recv SGE|"
        "max inline data|comp mask|create flags|max TSO header|Source QPN",
    ),
    (
        QPAttr(),
        "QP state|QP current state|Path MTU|Path mig. state|QKey|RQ PSN|SQ PSN|Dest QP number|"
        "QP access flags|QP caps|max send WR|max recv WR|max send SGE|max recv SGE|"
        "max inline data|AH Attr|port num|sl|source path bits|dlid|static rate|is global|"
        "Alt. AH Attr|port num|sl|source path bits|dlid|static rate|is global|PKey index|"
        "Alt. PKey index|En. SQD async notify|SQ draining|Max RD atomic|Max dest. RD atomic|"
        "Min RNR timer|Port number|Timeout|Retry counter|RNR retry|Alt. port number|"
        "Alt. timeout|Rate limit",
    ),
    (
        WC(),
        "WR ID|status|opcode|vendor error|byte length|QP num|source QP|WC flags|pkey index|slid|"
        "sl|imm_data|dlid path bits",
    ),
    (SGE(4096, 8, 16), "Address|Length|Key"),
    (RecvWR(), "WR ID|Num SGE"),
    (SendWR(num_sge=1, sg=[SGE(0, 0, 0)]), "WR ID|Num SGE|Opcode|Send flags|Imm Data"),
]


@pytest.mark.parametrize(("value", "labels"), LABELS, ids=lambda v: type(v).__name__)
def test_labels(value: Any, labels: str):
    lines = [line for line in str(value).split("\n") if line and not line.startswith("    ")]
    found = [re.split(r" *:", line, maxsplit=1)[0].strip() for line in lines]
    assert found == labels.split("|")


def test_the_form_of_a_line():
    assert str(SGE(4096, 8, 16)) == (
        "Address               : 0x1000              \n"
        "Length                : 8                   \n"
        "Key                   : 0x10                \n"
    )
    assert str(QPCap()).startswith("max send wrs        : 1                   \n")
    assert str(AHAttr()).startswith("  port num              : 1                   \n")


def test_defaults():
    cap, attr = QPInitAttr().cap, QPAttr()
    assert (cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge) == (0, 0, 0)
    assert (QPCap().max_send_wr, QPCap().max_recv_wr) == (1, 10)
    assert (QPInitAttr().sq_sig_all, QPInitAttrEx().sq_sig_all, QPInitAttr().qp_type) == (1, 0, 4)
    assert (attr.qp_state, attr.cur_qp_state, attr.port_num, attr.path_mtu) == (1, 0, 1, 3)
    assert (attr.ah_attr.port_num, AHAttr().port_num, attr.timeout) == (0, 1, 0)
    assert (SrqInitAttr().max_wr, SrqInitAttrEx().max_wr, SrqAttr().max_wr) == (0, 100, 100)
    assert (GlobalRoute().hop_limit, GRH().hop_limit) == (1, 1)


def test_nested_attributes_are_copies():
    attr = QPAttr()
    attr.cap.max_send_wr = 9
    attr.ah_attr.dlid = 9
    assert (attr.cap.max_send_wr, attr.ah_attr.dlid) == (0, 0)
    path = AHAttr(dlid=5)
    attr.ah_attr = path
    path.dlid = 6
    assert attr.ah_attr.dlid == 5
    init = QPInitAttr(cap=QPCap(3))
    init.cap.max_send_wr = 4
    assert init.max_send_wr == 3
    init.max_send_wr = 5
    assert init.cap.max_send_wr == 5


def test_gids_as_text():
    text = "FE80:0000:0000:0000:0002:C903:0011:2233"
    gid = GID(text)
    assert gid.gid == str(gid) == text.lower()
    assert GID().gid == "0000:" * 7 + "0000"
    for wrong in ("fe80::1", "", "fe80:0:0:0:2:c903:11:2233", text + ":0000"):
        with pytest.raises(PyverbsUserError, match=r"Invalid GID value \(\["):
            GID(wrong)
    for digits in ("zz80", "+180", " 180", "1_80"):
        with pytest.raises(ValueError, match="base 16"):
            GID(digits + text[4:])


def test_a_route_only_counts_when_the_path_is_global():
    gid = GID("fe80:0000:0000:0000:0002:c903:0011:2233")
    with pytest.raises(PyverbsUserError, match="Global AH Attr is created but gr parameter is No"):
        AHAttr(is_global=1)
    local = AHAttr(gr=GlobalRoute(gid))
    local.dgid = gid
    for name in ("dgid", "flow_label", "sgid_index", "hop_limit", "traffic_class"):
        assert getattr(local, name) is None
    path = AHAttr(is_global=1, gr=GlobalRoute(gid, 1, 2, 3, 4))
    assert str(path.dgid) == gid.gid
    assert (path.flow_label, path.sgid_index, path.hop_limit, path.traffic_class) == (1, 2, 3, 4)
    with pytest.raises(TypeError, match=r"Argument 'gr' has incorrect type \(expected pyverbs"):
        AHAttr(is_global=1, gr=gid)  # type: ignore[arg-type]  # on purpose


BAD: Any = 3
INCORRECT = r"Argument '{}' has incorrect type \(expected pyverbs.{}, got int\)"
TYPES: list[tuple[Any, str]] = [
    (lambda: GlobalRoute(BAD), INCORRECT.format("dgid", "addr.GID")),
    (lambda: QPInitAttr(cap=BAD), INCORRECT.format("cap", "qp.QPCap")),
    (lambda: QPInitAttr(scq=BAD), INCORRECT.format("scq", "cq.CQ")),
    (lambda: QPInitAttr(srq=BAD), INCORRECT.format("srq", "srq.SRQ")),
    (lambda: SrqInitAttr(BAD), INCORRECT.format("attr", "srq.SrqAttr")),
    (lambda: RecvWR(next_wr=BAD), INCORRECT.format("next_wr", "wr.RecvWR")),
    (lambda: setattr(QPAttr(), "ah_attr", None), "Argument 'val' must not be None"),
]


@pytest.mark.parametrize(("make", "text"), TYPES)
def test_object_arguments_of_another_class(make: Any, text: str):
    with pytest.raises(TypeError, match=f"^{text}$"):
        make()


def test_a_queue_of_another_kind_is_the_callers_mistake():
    with pytest.raises(PyverbsUserError, match=r"Expected CQ/CQEX, got <class .*GID'>"):
        QPInitAttr(scq=GID())
    with pytest.raises(PyverbsUserError, match="receive-side scaling"):
        QPInitAttrEx(ind_table=object())


def test_errors():
    error = PyverbsRDMAError("Failed to x", 22)
    assert str(error) == "Failed to x. Errno: 22, Invalid argument"
    assert (error.args, error.error_code) == ((str(error),), 22)
    assert str(PyverbsRDMAError("y")) == "y"
    assert str(PyverbsRDMAError("y", 0)) == "y. Errno: 0, Success"
    assert str(PyverbsRDMAError("y", -22)) == "y. Errno: -22, Unknown error -22"
    because = PyverbsRDMAError("y", 22, reason="of z")
    assert str(because) == "y. Errno: 22, Invalid argument: of z"
    again = copy.copy(because)
    assert (str(again), again.error_code, again.reason) == (str(because), 22, "of z")
    assert not hasattr(PyverbsError("z", 5), "error_code")
    assert issubclass(PyverbsUserError, PyverbsError)
    assert isinstance(PyverbsRDMAErrno("w"), PyverbsRDMAError)


def test_base_classes():
    assert [inc_rkey(0x1FF), inc_rkey(0x100)] == [0x100, 0x101]
    thing = PyverbsObject()
    thing.set_log_level(10)
    assert (thing.logger.name, thing.logger.level) == ("PyverbsObject", 10)
    with PyverbsCM() as entered:
        assert isinstance(entered, PyverbsCM)
