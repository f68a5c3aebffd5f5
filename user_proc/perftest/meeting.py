"""How two sides meet: one kernel, one TCP connection, the same options, addresses, an orderly end.

Rules: main thread.
"""

import select
from collections.abc import Callable, Mapping
from typing import Any, Final

from user_proc.errors import ConnectionClosed, KernelDied
from user_proc.perftest.address import Address
from user_proc.perftest.endpoint import Endpoint
from user_proc.perftest.peer_link import PeerLink, connect, field, listen
from user_proc.perftest.tool_errors import ToolFailed
from user_proc.perftest.tool_kernel import kernel_for_server
from user_proc.verbs.kernel_connection import kernel_name
from user_proc.verbs.pyverbs_error import PyverbsError

_LEAVE_SECONDS: Final = 2.0
_END_SECONDS: Final = 0.5

#: What is done between two ends that have met: with the kernel's name, and whether it is our own.
Work = Callable[[PeerLink, str, bool], None]


def serve(name: str | None, port: int, told: Mapping[str, object], say: Callable[[], None],
          work: Work) -> None:  # fmt: skip
    """Be the server: wait for one client, and do the work with it.

    `told` is what both sides must have been given alike; `say` is called when a client may come.
    """
    kernel = kernel_name(name)
    with kernel_for_server(kernel) as is_own:
        with listen(port) as listener:
            say()
            select.select([listener], [], [])
            connection, _ = listener.accept()
        with PeerLink(connection) as link:
            _require_alike(told, link.receive())
            link.send(kernel=kernel)
            work(link, kernel, is_own)
            link.wait_for_end(_LEAVE_SECONDS)


def join(name: str | None, host: str, port: int, told: Mapping[str, object], work: Work) -> None:
    """Be the client: connect to the server and do the work on its kernel."""
    with connect(host, port) as link:
        link.send(**told)
        kernel = str(field(link.receive(), "kernel", str))
        if name is not None and name != kernel:
            raise ToolFailed(f"the server is on the kernel {kernel!r}, not {name!r}")
        try:
            work(link, kernel, False)
        except (PyverbsError, KernelDied, ConnectionClosed):
            # A server that ends takes its kernel along; verbs may tell of it before the link does.
            link.look_within(_END_SECONDS)
            raise


def _require_alike(ours: Mapping[str, object], theirs: Mapping[str, Any]) -> None:
    for option, value in ours.items():
        if theirs.get(option) != value:
            what = "the tool" if option == "tool" else option
            raise ToolFailed(
                f"{what} must be the same on both sides: here {_shown(value)}, "
                f"at the client {_shown(theirs.get(option))}"
            )


def _shown(value: object) -> str:
    return "not given" if value is None else str(value)


def connect_endpoints(endpoint: Endpoint, link: PeerLink) -> Address:
    """Exchange addresses and bring every queue pair to RTS; give the other side's address."""
    peer = Address.of(link.meet(**endpoint.address.fields()), len(endpoint.qps))
    endpoint.connect(peer)
    return peer


def agree_on_data(link: PeerLink, fault: str) -> None:
    """Fail on both sides when the data of either are wrong."""
    theirs = field(link.meet(fault=fault), "fault", str)
    if fault or theirs:
        raise ToolFailed(fault or f"at the other side: {theirs}")
