"""The extended init attributes of a queue pair: domain, creation flags, send operations.

`comp_mask` says which of the further fields count. What the device lacks (segmentation offload,
receive-side scaling) is refused by the creation with EOPNOTSUPP.

Spec: rdma-core, pyverbs/qp.pyx; ibv_create_qp_ex(3).
"""

from typing import Any

from shared.verbs_enums import ibv_qp_create_flags
from user_proc.verbs.argument_types import optional
from user_proc.verbs.c_integers import CField, IntLike, to_u16, to_u32, to_u64
from user_proc.verbs.libibverbs_enums import ibv_qp_init_attr_mask
from user_proc.verbs.object_fields import ObjectField
from user_proc.verbs.pd import PD
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.qp_capabilities import QPCap
from user_proc.verbs.qp_init_attr import UD, InitAttributes
from user_proc.verbs.srq import SRQ
from user_proc.verbs.utils import names_of_flags
from user_proc.verbs.xrcd import XRCD


class QPInitAttrEx(InitAttributes):
    """ibv_qp_init_attr_ex; `comp_mask` says which of its further fields count."""

    comp_mask = CField(to_u32)
    create_flags = CField(to_u32)
    max_tso_header = CField(to_u16)
    source_qpn = CField(to_u32)
    send_ops_flags = CField(to_u64)
    pd = ObjectField(PD)
    xrcd = ObjectField(XRCD)

    def __init__(
        self,
        qp_type: IntLike = UD,
        qp_context: object = None,
        scq: Any = None,
        rcq: Any = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: IntLike = 0,
        comp_mask: IntLike = 0,
        pd: PD | None = None,
        xrcd: XRCD | None = None,
        create_flags: IntLike = 0,
        max_tso_header: IntLike = 0,
        source_qpn: IntLike = 0,
        hash_conf: object = None,
        ind_table: object = None,
        send_ops_flags: IntLike = 0,
    ) -> None:
        super().__init__(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)
        if hash_conf is not None or ind_table is not None:
            raise PyverbsUserError("the device has no receive-side scaling")
        self.comp_mask = comp_mask
        self._pd = optional("pd", pd, PD)
        self._xrcd = optional("xrcd", xrcd, XRCD)
        self.create_flags = create_flags
        self.max_tso_header = max_tso_header
        self.source_qpn = source_qpn
        self.send_ops_flags = send_ops_flags

    @property
    def ind_table(self) -> None:
        """None: the device has no receive-side scaling."""
        return

    @ind_table.setter
    def ind_table(self, val: object) -> None:
        if val is not None:
            raise PyverbsUserError("the device has no receive-side scaling")

    def mask_to_str(self, mask: IntLike) -> str:
        """List the bits of a mask."""
        return names_of_flags(to_u32(mask), ibv_qp_init_attr_mask)

    def flags_to_str(self, flags: IntLike) -> str:
        """List creation flags."""
        return names_of_flags(to_u32(flags), ibv_qp_create_flags)

    def __str__(self) -> str:
        return super().__str__() + lines(
            20,
            [
                ("comp mask", self.mask_to_str(self.comp_mask)),
                ("create flags", self.flags_to_str(self.create_flags)),
                ("max TSO header", self.max_tso_header),
                ("Source QPN", self.source_qpn),
            ],
        )
