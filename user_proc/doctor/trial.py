"""A kernel on trial: started, used as a program uses one, and stopped.

It has a name of its own in the runtime folder and is bound to this process, so that nothing of it
stays whatever happens.
"""

import os
import uuid
from typing import Any, Final

from shared.clock import now_ns
from shared.ioctl_codes import COMPLETION_INLINE, METHOD_NEITHER, NOOP_DEVICE, noop_code
from user_proc.doctor.check import Check, missing, short, well
from user_proc.errors import SofthcaError
from user_proc.process import UserProcess
from user_proc.transport.kernel_control import kernel_state
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsError

_USUAL_SESSIONS: Final = 256  # admitted by default
_DESCRIPTORS: Final = "descriptors"
_PAYLOAD: Final = bytes(range(256))
_NS_PER_MS: Final = 1_000_000


def try_kernel() -> list[Check]:
    """Return the checks of descriptors and of the kernel itself."""
    name = f"doctor-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    begin = now_ns()
    try:
        with start_kernel(name) as kernel:
            ready_ms = (now_ns() - begin) // _NS_PER_MS
            _use(name)
            plan = kernel_state(name)["descriptor_plan"]
            kernel.stop()
            code = kernel.exit_code
    except (SofthcaError, PyverbsError, OSError) as error:
        return [_refused(str(error))]
    if code != 0:
        found = f"a kernel was ready in {ready_ms} ms, but did not stop in order ({code})"
        return [_descriptors(plan), short("kernel", found, "run it with --log FILE and read that")]
    found = f"one was ready in {ready_ms} ms, served a request and three verbs, and stopped"
    return [_descriptors(plan), well("kernel", found)]


def _use(name: str) -> None:
    with UserProcess.connect(name) as process:
        answer = bytearray(len(_PAYLOAD))
        with process.open_device(NOOP_DEVICE) as device:
            # By address: the kernel reaches private memory of this process.
            code = noop_code(METHOD_NEITHER, COMPLETION_INLINE)
            device.device_io_control(code, _PAYLOAD, answer)
        if answer != _PAYLOAD:
            raise SofthcaError("a request by address came back with other bytes than were sent")
        with Context(name="mthca0", process=process) as context:
            pd = PD(context)
            region = MR(pd, len(_PAYLOAD), 1)
            region.close()
            pd.close()


def _refused(why: str) -> Check:
    if _DESCRIPTORS in why:
        return missing(
            _DESCRIPTORS, why, "raise the hard limit (ulimit -Hn; LimitNOFILE= of a service)"
        )
    return missing("kernel", why, "cure what is missing above, then look at what it says")


def _descriptors(plan: dict[str, Any]) -> Check:
    found = (
        f"a kernel needs {plan['needed']} and may have {plan['limit']}, "
        f"enough for {plan['sessions']} processes at a time"
    )
    if plan["sessions"] < _USUAL_SESSIONS:
        return short(
            _DESCRIPTORS,
            f"{found} instead of {_USUAL_SESSIONS}",
            "raise the hard limit (ulimit -Hn; LimitNOFILE= of a service) if you need more",
        )
    return well(_DESCRIPTORS, found)
