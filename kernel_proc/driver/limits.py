"""How large the tables are: the driver's profile within what QUERY_DEV_LIM allows.

Spec: Linux mthca_main.c (default_profile, mthca_dev_lim); mthca_provider.c (query_device).
"""

from typing import Any, Final, NamedTuple

from kernel_proc.hca_abi.contexts import DeviceLimits

MAX_MESSAGE: Final = 0x8000_0000
MAX_GIDS_IN_GROUP: Final = 56

#: What the driver has of the tables of users: keys of three event queues and of all memory.
DRIVER_KEYS: Final = 4
DRIVER_DOMAINS: Final = 1


class Profile(NamedTuple):
    """How large the driver wants its tables, as log2 of the entries but for `uar_pages`.

    `share_percent` of a table are one process's at most, and `most_objects` of all kinds.
    `look_every_ns` apart the event queues are looked at without an interrupt; 0: never.
    """

    log_qps: int = 16
    log_cqs: int = 16
    log_srqs: int = 10
    log_eqs: int = 5
    log_mpts: int = 17
    log_mtt_segments: int = 20
    log_pds: int = 15
    log_mgms: int = 13
    uar_pages: int = 2048
    share_percent: int = 100
    most_objects: int = 1 << 20
    look_every_ns: int = 0


class Limits(NamedTuple):
    """The sizes of one life; `device` is QUERY_DEV_LIM's answer."""

    device: DeviceLimits
    log_qps: int
    log_cqs: int
    log_srqs: int
    log_eqs: int
    log_mpts: int
    log_mtt_segments: int
    log_pds: int
    log_mgms: int
    uar_pages: int

    @property
    def max_qp(self) -> int:
        """QPs that users can have at a time."""
        return (1 << self.log_qps) - self.device.reserved_qps

    @property
    def max_cq(self) -> int:
        """CQs that users can have at a time."""
        return (1 << self.log_cqs) - self.device.reserved_cqs

    @property
    def max_srq(self) -> int:
        """SRQs that users can have at a time."""
        return (1 << self.log_srqs) - self.device.reserved_srqs

    @property
    def max_mr(self) -> int:
        """Memory keys that users can have at a time; those of their queues count, too."""
        return (1 << self.log_mpts) - self.device.reserved_mpts - DRIVER_KEYS

    @property
    def max_cqe(self) -> int:
        """Entries a CQ can be asked to have; one is kept back."""
        return (1 << self.device.log_max_cqes) - 1

    @property
    def max_rd_atomic(self) -> int:
        """Reads and atomics outstanding at a QP as responder."""
        return 1 << self.device.log_max_rdb_per_qp

    @property
    def ports(self) -> int:
        """Ports, which are counted from 1."""
        return self.device.ports

    def inspect(self) -> dict[str, Any]:
        """Return every figure."""
        return {**self._asdict(), "device": self.device._asdict()}


def limits_of(device: DeviceLimits, profile: Profile) -> Limits:
    """Take the driver's profile, or the device's own limit where that is lower."""
    return Limits(
        device=device,
        log_qps=min(profile.log_qps, device.log_max_qps),
        log_cqs=min(profile.log_cqs, device.log_max_cqs),
        log_srqs=min(profile.log_srqs, device.log_max_srqs),
        log_eqs=min(profile.log_eqs, device.log_max_eqs),
        log_mpts=min(profile.log_mpts, device.log_max_mpts),
        log_mtt_segments=profile.log_mtt_segments,
        log_pds=min(profile.log_pds, device.log_max_pds),
        log_mgms=min(profile.log_mgms, device.log_max_mgms),
        uar_pages=profile.uar_pages,
    )
