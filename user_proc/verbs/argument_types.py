"""Checks of object arguments, with the words Cython's signatures have for a wrong one."""

from typing import Any, Final, TypeVar

_T = TypeVar("_T")

#: Where a class is known from, if it is not the module that defines it.
_PUBLIC: Final = {
    "address_attributes": "addr",
    "comp_channel": "cq",
    "completion": "cq",
    "completion_queue": "cq",
    "cq_ex": "cq",
    "cq_ex_attributes": "cq",
    "device_attributes": "device",
    "device_context": "device",
    "device_queries": "device",
    "dm": "device",
    "dm_mr": "mr",
    "memory_region": "mr",
    "memory_windows": "mr",
    "mr_ex": "mr",
    "parent_domain": "pd",
    "port_attributes": "device",
    "protection_domain": "pd",
    "qp_attributes": "qp",
    "qp_capabilities": "qp",
    "qp_ex": "qp",
    "qp_init_attr": "qp",
    "qp_init_attr_ex": "qp",
    "queue_pair": "qp",
    "queue_pair_life": "qp",
    "send_request": "wr",
    "srq_attributes": "srq",
    "work_request": "wr",
}


#: What programs know the common base of some classes as.
_CLASSES: Final = {"CompletionQueue": "CQ", "EventTarget": "CQ", "QueuePairLife": "QP"}


def type_name(kind: type) -> str:
    """Name a class as programs know it: `pyverbs.addr.GID`."""
    name = _CLASSES.get(kind.__qualname__, kind.__qualname__)
    package, _, module = kind.__module__.rpartition(".")
    if package == __name__.rpartition(".")[0]:
        return f"pyverbs.{_PUBLIC.get(module, module)}.{name}"
    return kind.__qualname__


def require(name: str, value: Any, kind: type[_T]) -> _T:
    """Return an argument that must be of this class; TypeError otherwise, None included."""
    if isinstance(value, kind):
        return value
    if value is None:
        raise TypeError(f"Argument '{name}' must not be None")
    raise wrong_type(name, value, kind)


def optional(name: str, value: Any, kind: type[_T]) -> _T | None:
    """Return an argument of this class, or None; TypeError for anything else."""
    if value is None or isinstance(value, kind):
        return value
    raise wrong_type(name, value, kind)


def require_some(name: str, value: Any) -> Any:
    """Return an argument that may be anything but None."""
    if value is None:
        raise TypeError(f"Argument '{name}' must not be None")
    return value


def wrong_type(name: str, value: object, kind: type) -> TypeError:
    """Say which class an argument must have."""
    return TypeError(
        f"Argument '{name}' has incorrect type "
        f"(expected {type_name(kind)}, got {type(value).__name__})"
    )
