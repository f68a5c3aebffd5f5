"""Every check, in the order in which one thing rests on another."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from shared.version import softhca_version
from user_proc.doctor.check import Check, State, short, well
from user_proc.doctor.leftovers import find_leftovers
from user_proc.doctor.machine_checks import (
    check_clock,
    check_cores,
    check_memory,
    check_runtime_folder,
)
from user_proc.doctor.python_checks import check_packages, check_python
from user_proc.doctor.system_checks import (
    check_pidfd,
    check_private_memory,
    check_shared_memory,
    check_sockets,
)
from user_proc.doctor.trial import try_kernel
from user_proc.errors import SofthcaError
from user_proc.transport.kernel_control import list_kernels

FIRST: Final[tuple[Callable[[], Check], ...]] = (
    check_python,
    check_packages,
    check_shared_memory,
    check_pidfd,
    check_private_memory,
    check_sockets,
    check_memory,
    check_cores,
    check_clock,
    check_runtime_folder,
)


def diagnose() -> list[Check]:
    """Look at everything; a kernel is tried only where nothing it needs is missing."""
    checks = [check() for check in FIRST]
    if is_well(checks):
        checks += try_kernel()
    else:
        checks.append(short("kernel", "not tried", "cure what is missing first"))
    try:
        checks += [check_kernels(), find_leftovers().check()]
    except (SofthcaError, OSError) as error:
        checks.append(short("leftovers", str(error), "cure the runtime folder first"))
    return checks


def check_kernels() -> Check:
    """The kernels that run, and whether they are of this version."""
    running = [kernel for kernel in list_kernels() if kernel.running]
    own = softhca_version()
    others = [kernel.name for kernel in running if kernel.version != own]
    each = ", ".join(f"{kernel.name} (pid {kernel.pid})" for kernel in running)
    if others:
        return short(
            "running",
            f"{each}; of another version than {own}: {', '.join(others)}",
            "stop and start those, so that both sides are of one version",
        )
    return well("running", each or "no kernel runs")


def is_well(checks: Sequence[Check]) -> bool:
    """Tell whether nothing is missing."""
    return all(check.state is not State.MISSING for check in checks)


def document_parts(checks: Sequence[Check], cleaned: Sequence[str]) -> dict[str, Any]:
    """Return what a document of the kind "doctor" has of its own."""
    return {
        "checks": [check.as_dict() for check in checks],
        "missing": sum(check.state is State.MISSING for check in checks),
        "cleaned": list(cleaned),
    }
