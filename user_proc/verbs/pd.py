"""Protection domains, and parent domains on them.

Spec: rdma-core, pyverbs/pd.pyx; ibv_alloc_pd(3), ibv_alloc_parent_domain(3).
"""

from user_proc.verbs.parent_domain import (
    ParentDomain,
    ParentDomainContext,
    ParentDomainInitAttr,
)
from user_proc.verbs.protection_domain import PD

__all__ = ["PD", "ParentDomain", "ParentDomainContext", "ParentDomainInitAttr"]
