"""Work requests: elements, receives, sends.

Spec: rdma-core, pyverbs/wr.pyx.
"""

from user_proc.verbs.send_request import SendWR, opcode_to_str
from user_proc.verbs.utils import names_of_send_flags
from user_proc.verbs.work_request import SGE, RecvWR

send_flags_to_str = names_of_send_flags

__all__ = ["SGE", "RecvWR", "SendWR", "opcode_to_str", "send_flags_to_str"]
