"""What `softhca devinfo -v` tells of the extended calls: clock, device memory, what they take.

Spec: ibv_devinfo(1); ibv_query_device_ex(3), ibv_create_cq_ex(3), ibv_wr_post(3).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shared.verbs_enums import ibv_qp_create_send_ops_flags, ibv_qp_type, ibv_wr_opcode
from user_proc.verbs.cq_ex import SUPPORTED_WC_FLAGS
from user_proc.verbs.libibverbs_enums import ibv_create_cq_wc_flags, ibv_device_cap_flags
from user_proc.verbs.posting import OPCODES

if TYPE_CHECKING:
    from user_proc.verbs.device import Context

_FIELD: Final = "IBV_WC_EX_WITH_"
_OPERATION: Final = "IBV_QP_EX_WITH_"


class Fact(NamedTuple):
    """A label, the value for JSON, the text if that is another, and whether only -v shows it.

    `names` stand below the text, one on each line.
    """

    label: str
    value: Any
    text: str | None = None
    verbose: bool = False
    names: Sequence[str] = ()

    @property
    def shown(self) -> str:
        """Return the text for people."""
        return str(self.value) if self.text is None else self.text


def hexadecimal(label: str, value: int) -> Fact:
    """Give a fact of -v that people read in hexadecimal."""
    return Fact(label, value, f"{value:#x}", True)


def extended_facts(context: "Context") -> list[Fact]:
    """Ask a device for what it has beyond the plain attributes; all of it is of -v."""
    attributes = context.query_device_ex()
    vectors, flags = context.num_comp_vectors, attributes.device_cap_flags_ex
    names = [one.name.removeprefix("IBV_") for one in ibv_device_cap_flags if one and flags & one]
    return [
        Fact("num_comp_vectors", vectors, None, True),
        Fact("device_cap_flags_ex", names, f"{flags:#x}", True),
        hexadecimal("completion_timestamp_mask", attributes.completion_timestamp_mask),
        Fact("hca_core_clock", attributes.hca_core_clock, f"{attributes.hca_core_clock} kHz", True),
        Fact("max_dm_size", attributes.max_dm_size, f"{attributes.max_dm_size} bytes", True),
        _completion_fields(),
        *_send_operations(),
    ]


def _completion_fields() -> Fact:
    names = [
        one.name.removeprefix(_FIELD) for one in ibv_create_cq_wc_flags if SUPPORTED_WC_FLAGS & one
    ]
    return Fact("cq_ex_fields", names, f"{SUPPORTED_WC_FLAGS:#x}", True, names)


def _send_operations() -> list[Fact]:
    """Give, for each type of queue pair that sends, what its builders can be asked for."""
    facts = []
    for kind, opcodes in sorted(OPCODES.items()):
        done = {ibv_wr_opcode(one).name.removeprefix("IBV_WR_") for one in opcodes}
        chosen = [
            one for one in ibv_qp_create_send_ops_flags if one.name.removeprefix(_OPERATION) in done
        ]
        names = [one.name.removeprefix(_OPERATION) for one in chosen]
        label = f"send_ops_{ibv_qp_type(kind).name.removeprefix('IBV_QPT_').lower()}"
        facts.append(Fact(label, names, f"{sum(chosen):#x}", True, names))
    return facts
