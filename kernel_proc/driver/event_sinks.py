"""Where the interrupt side of the driver delivers what the HCA tells.

Rules: every routine at DISPATCH_LEVEL, so none may wait; `context_closing` alone at PASSIVE_LEVEL.
Spec: docs/notification.md; WinOFED hw/mthca/kernel/mthca_eq.c.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context


class EventSinks(Protocol):
    """What `notification` offers; numbers come from the HCA and may name nothing any more."""

    def completion(self, cqn: int) -> None:
        """Tell a completion event of an armed CQ."""

    def cq_error(self, cqn: int, syndrome: int) -> None:
        """Tell that a CQ overran or could not be written."""

    def qp_event(self, qpn: int, event_type: int) -> None:
        """Tell an asynchronous event of a QP; `event_type` as in `event_entries`."""

    def srq_event(self, srqn: int, event_type: int) -> None:
        """Tell an asynchronous event of an SRQ."""

    def port_event(self, port: int, subtype: int) -> None:
        """Tell a change of a port."""

    def device_fatal(self) -> None:
        """Tell every context that the HCA is dead."""

    def context_closing(self, context: "Context") -> None:
        """End the requests a context has pended: its last handle is closed."""
