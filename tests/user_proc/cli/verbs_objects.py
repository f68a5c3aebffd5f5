"""One object of each kind, for the tables to show; and a program that holds very many."""

import textwrap
from typing import Any, NamedTuple

from shared.verbs_enums import ibv_access_flags, ibv_mw_type, ibv_qp_type
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR, MW
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP
from user_proc.verbs.qp_capabilities import QPCap
from user_proc.verbs.qp_init_attr import QPInitAttr
from user_proc.verbs.srq import SRQ
from user_proc.verbs.srq_attributes import SrqAttr, SrqInitAttr
from user_proc.verbs.xrcd import XRCD, XRCDInitAttr

ACCESS = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE | ibv_access_flags.IBV_ACCESS_REMOTE_READ)

#: Opens the device of the kernel it is told, makes as many PDs and AHs, MRs and CQs as it is told,
#: says so and holds them until it is killed.
HOLDER = textwrap.dedent("""
    import sys
    from user_proc.verbs.addr import AH, AHAttr
    from user_proc.verbs.cq import CQ
    from user_proc.verbs.device import Context
    from user_proc.verbs.mr import MR
    from user_proc.verbs.pd import PD

    context = Context(name="mthca0", kernel=sys.argv[1])
    light, heavy = int(sys.argv[2]), int(sys.argv[3])
    pds = [PD(context) for _ in range(light)]
    handles = [AH(pds[0], attr=AHAttr(dlid=2, port_num=1)) for _ in range(light)]
    regions = [MR(pds[0], 64, 1) for _ in range(heavy)]
    queues = [CQ(context, 1) for _ in range(heavy)]
    print("held", flush=True)
    sys.stdin.read()
""")


class Objects(NamedTuple):
    """One of each; a channel beside the CQ, so that the driver holds its requests."""

    pd: PD
    mr: MR
    mw: MW
    ah: AH
    channel: CompChannel
    cq: CQ
    qp: QP
    srq: SRQ
    xrcd: XRCD


def make_objects(context: Context) -> Objects:
    """Make one object of each kind."""
    pd = PD(context)
    channel = CompChannel(context)
    cq = CQ(context, 10, None, channel)
    init = QPInitAttr(
        qp_type=int(ibv_qp_type.IBV_QPT_RC),
        scq=cq,
        rcq=cq,
        cap=QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1),
    )
    return Objects(
        pd=pd,
        mr=MR(pd, 8192, ACCESS),
        mw=MW(pd, int(ibv_mw_type.IBV_MW_TYPE_2)),
        ah=AH(pd, attr=AHAttr(dlid=2, port_num=1)),
        channel=channel,
        cq=cq,
        qp=QP(pd, init),
        srq=SRQ(pd, SrqInitAttr(SrqAttr(16, 2))),
        xrcd=XRCD(context, XRCDInitAttr(3, 0o100, -1)),
    )


def session_of(rows: list[dict[str, Any]]) -> set[int]:
    """The sessions the rows belong to."""
    return {row["session"] for row in rows}
