"""Every enumeration and constant of libibverbs, under its name.

Spec: rdma-core, pyverbs/libibverbs_enums.pxd; libibverbs/verbs.h.
"""

from shared.verbs_enums import *  # noqa: F403 - this module is that one under its public name
from shared.verbs_enums import (  # noqa: F401 - what the star leaves out
    _IBV_ADVISE_MR_ADVICE_PREFETCH,
    _IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    _IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    _IBV_ADVISE_MR_FLAG_FLUSH,
    _IBV_ALLOCATOR_USE_DEFAULT,
    _IBV_DEVICE_CC_DMA_BOUNCE,
    _IBV_DEVICE_PCI_WRITE_END_PADDING,
    _IBV_DEVICE_RAW_SCATTER_FCS,
)
