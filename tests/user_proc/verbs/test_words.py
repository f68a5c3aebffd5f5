"""The words: of reasons, of codes and flags; the constants under both spellings."""

import json
from typing import Any

import pytest

from shared import verbs_enums
from shared.verb_reasons import VerbReason
from user_proc.verbs import completion, enums, libibverbs_enums, mr, utils, wr
from user_proc.verbs import device_strings as words
from user_proc.verbs.reasons import reason_text


@pytest.mark.parametrize("reason", [one for one in VerbReason if one])
def test_every_reason_has_a_sentence(reason: VerbReason):
    for about, detail in ((0, 0), (5, 9), ((1 << 64) - 1, (1 << 64) - 1)):
        text = reason_text(reason, about, detail)
        assert text
        assert not text.startswith("reason ")
        assert not text.endswith(".")
        assert "{" not in text


@pytest.mark.parametrize(
    ("reason", "about", "detail", "text"),
    [
        ("NONE", 0, 0, ""),
        ("BAD_CQE", 0xFFFF_FFFF, 9, "cqe -1 is not 1 to 9"),
        ("BAD_CQE", 12, 9, "cqe 12 is not 1 to 9"),
        ("BAD_COMP_VECTOR", 0xFFFF_FFFE, 1, "comp_vector -2 is not 0 to 0"),
        ("QP_TYPE_NOT_SUPPORTED", 0, 7, "the device does not support queue pairs of type 7"),
        ("OUT_OF_MEMORY", 1, 8192, "the kernel has no 8192 bytes of memory the device can reach "
         "in one piece"),
        ("OUT_OF_MEMORY", 0, 8192, "the kernel has no 8192 bytes of memory the device can reach"),
        ("STILL_ATTACHED", 0, 2, "it is attached to 2 multicast groups: detach it first"),
        ("IN_USE", 4, 1, "an object made on it still exists: close it first"),
        ("IN_USE", 4, 3, "3 objects made on it still exist: close them first"),
        ("ATTRIBUTES_MISSING", 2 << 16 | 1 << 8 | 2, 0x8000, "INIT to RTR needs "
         "IBV_QP_MIN_RNR_TIMER for RC"),
        ("ATTRIBUTES_NOT_ALLOWED", 4 << 16 | 2 << 8 | 3, 0x200 | 1 << 30, "RTR to RTS does not "
         "take IBV_QP_TIMEOUT, 0x40000000 for UD"),
        ("NO_SUCH_TRANSITION", 3 << 16 | 0 << 8 | 3, 0, "there is no transition RESET to RTS for "
         "UC"),
        ("NO_SUCH_TRANSITION", 99 << 16 | 77 << 8 | 88, 0, "there is no transition state 77 to "
         "state 88 for type 99"),
        ("BAD_PATH_MTU", 5, 4, "path_mtu 4096 is more than the port's 2048"),
        ("BAD_PATH_MTU", 9, 4, "path_mtu 9 is no ibv_mtu"),
        ("NOT_MAPPED", 4096, 1, "the memory at 0x1000 cannot be written"),
        ("COMMAND_FAILED", 0, 0x1A03, "the device refused command 0x1a with status 0x3"),
    ],
)  # fmt: skip
def test_sentences(reason: str, about: int, detail: int, text: str):
    assert reason_text(VerbReason[reason], about, detail) == text


def test_a_reason_of_another_version_goes_by_its_number():
    assert reason_text(9999, 1, 2) == "reason 9999 (object 1, detail 2)"


def test_both_spellings_of_the_constants():
    assert enums.IBV_QPT_RC == libibverbs_enums.ibv_qp_type.IBV_QPT_RC == 2
    assert enums.ibv_qp_type is libibverbs_enums.ibv_qp_type is verbs_enums.ibv_qp_type
    assert enums.IBV_LINK_LAYER_INFINIBAND == libibverbs_enums.IBV_LINK_LAYER_INFINIBAND == 1
    hidden = [name for name in vars(libibverbs_enums) if name.startswith("_IBV")]
    assert hidden
    for name in hidden:
        assert getattr(enums, name) == getattr(libibverbs_enums, name)
    members = [
        member
        for kind in vars(libibverbs_enums).values()
        if isinstance(kind, type) and issubclass(kind, int)
        for member in kind.__members__.values()  # type: ignore[attr-defined]  # an enumeration
    ]
    assert len(members) > 300
    assert all(getattr(enums, member.name) is member for member in members)
    assert str(enums.IBV_QPT_RC) == "2"
    assert type(enums.IBV_SEND_SIGNALED | enums.IBV_SEND_INLINE) is int
    assert json.dumps(enums.IBV_QPT_RC) == "2"


TABLE: list[tuple[Any, tuple[Any, ...], Any]] = [
    (utils.qp_type_to_str, (9,), "XRCD_SEND"),
    (utils.qp_type_to_str, (77,), "Unknown (77)"),
    (utils.qp_state_to_str, (6,), "Error"),
    (utils.qp_state_to_str, (9,), "Unknown"),
    (utils.mtu_to_str, (5,), 4096),
    (utils.mtu_to_str, (6,), 0),
    (utils.access_flags_to_str, (0x45,), "Local write Remote read On demand "),
    (utils.mig_state_to_str, (1,), "Re-arm"),
    (utils.rereg_error_to_str, (-1,), "IBV_REREG_MR_ERR_INPUT"),
    (utils.rereg_error_to_str, (-9,), "Unknown error (-9)"),
    (utils.gid_str_to_array, ("0102:0304:0506:0708:090a:0b0c:0d0e:0f10",),
     [f"{number:02x}" for number in range(1, 17)]),
    (utils.gid_str, (0x80FE, 0), "fe80:0000:0000:0000:0000:0000:0000:0000"),
    (completion.cqe_status_to_str, (5,), "WR flush error"),
    (completion.cqe_status_to_str, (21,), "general error"),
    (completion.cqe_status_to_str, (22,), "Unknown CQE status"),
    (completion.cqe_status_to_str, (-1,), "Unknown CQE status"),
    (completion.cqe_opcode_to_str, (0x81,), "Receive RDMA with immediate"),
    (completion.cqe_opcode_to_str, (0x87,), "Unknown CQE opcode 135"),
    (completion.cqe_flags_to_str, (3,), "GRH With immediate "),
    (completion.create_wc_flags_to_str, (1,), "IBV_WC_EX_WITH_BYTE_LEN "),
    (wr.send_flags_to_str, (3,), "IBV_SEND_FENCE IBV_SEND_SIGNALED "),
    (mr.mwtype2str, (2,), "IBV_MW_TYPE_2"),
    (mr.mwtype2str, (3,), "Unknown MW type (3)"),
    (words.translate_event_type, (16,), "IBV_EVENT_QP_LAST_WQE_REACHED"),
    (words.translate_event_type, (99,), "Unknown event_type (99)"),
    (words.translate_gid_type, (2,), "RoCEv2"),
    (words.translate_link_layer, (1,), "InfiniBand"),
    (words.translate_node_type, (1,), "CA"),
    (words.translate_node_type, (9,), "Unknown"),
    (words.translate_transport_type, (0,), "IB"),
    (words.translate_mtu, (3,), "1024 (3)"),
    (words.translate_mtu, (9,), "Invalid MTU (9)"),
    (words.port_state_to_str, (4,), "Active (4)"),
    (words.port_state_to_str, (9,), "Invalid state (9)"),
    (words.phys_state_to_str, (5,), "Link up (5)"),
    (words.phys_state_to_str, (9,), "Invalid physical state"),
    (words.width_to_str, (2,), "4X (2)"),
    (words.width_to_str, (3,), "Invalid width"),
    (words.speed_to_str, (2, 0), "5.0 Gbps (2)"),
    (words.speed_to_str, (2, 256), "200.0 Gbps (256)"),
    (words.guid_format, (0x3322110003C90200,), "0002:c903:0011:2233"),
    (words.guid_to_hex, (255,), "ff"),
    (words.str_from_flags, (3, {1: "one", 2: "two"}), "\n    one\n    two"),
    (words.translate_device_caps, (1,), "\n    IBV_DEVICE_RESIZE_MAX_WR"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "text"), TABLE)
def test_words(function: Any, arguments: tuple[Any, ...], text: Any):
    assert function(*arguments) == text
