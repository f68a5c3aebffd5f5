"""What an HCA is told when it starts: latency model, seed, limits, identity.

The kernel sends it as JSON in the first packet; what cannot be used is refused with a sentence.

Spec: docs/latency-models.md; limits as in ibv_query_device.
"""

import json
import math
from typing import Any, Final, NamedTuple

from kernel_proc.hca_abi.contexts import DeviceLimits
from kernel_proc.judged_values import judged


class HcaSettingsError(ValueError):
    """A setting is unknown or its value cannot be used; the text is one sentence."""


@judged
class HcaSettings(NamedTuple):
    """The settings of one HCA, with the limits of an InfiniHost III Ex; or HcaSettingsError.

    `latency_model`: none, plausible, prm-ceiling, or the path of a TOML file. `spin_hint`: empty
    looks before a poller yields. `idle_spin_us`: how long an idle HCA process looks (and yields)
    before it sleeps. `log_*` are powers of two.
    """

    latency_model: str = "none"
    latency_factor: float = 1.0
    seed: int = 1
    spin_hint: int = 0
    idle_spin_us: int = 200

    node_guid: int = 0x0002_C902_0040_2F00
    ports: int = 2
    log_max_qps: int = 16
    log_max_cqs: int = 16
    log_max_srqs: int = 10
    log_max_mpts: int = 17
    log_max_mtt_segments: int = 20
    log_max_pds: int = 15
    log_max_mgms: int = 13
    max_qp_rd_atom: int = 4
    max_wqes: int = 16384
    max_sges: int = 27
    log_max_cqes: int = 17
    max_srq_wqes: int = 16384
    max_inline: int = 400
    max_mtu: int = 5  # an ibv_mtu

    def judge(self) -> None:
        """Raise HcaSettingsError for a value that cannot be."""
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise HcaSettingsError(f"{name} must lie between {least} and {most}, not {value}")
        if not math.isfinite(self.latency_factor):
            raise HcaSettingsError("latency_factor must be a number")
        if self.max_qp_rd_atom & (self.max_qp_rd_atom - 1):
            raise HcaSettingsError("max_qp_rd_atom must be a power of two")


_RANGES: Final[dict[str, tuple[float, float]]] = {
    "latency_factor": (0.0, 1000.0),
    "seed": (0, (1 << 63) - 1),
    "spin_hint": (0, 1_000_000),
    "idle_spin_us": (0, 1_000_000),
    "node_guid": (1, (1 << 64) - 256),
    "ports": (1, 2),
    "log_max_qps": (11, 20),
    "log_max_cqs": (8, 20),
    "log_max_srqs": (7, 16),
    "log_max_mpts": (5, 20),
    "log_max_mtt_segments": (5, 24),
    "log_max_pds": (3, 20),
    "log_max_mgms": (1, 16),
    "max_qp_rd_atom": (1, 128),
    "max_wqes": (1, 1 << 20),
    "max_sges": (1, 255),
    "log_max_cqes": (1, 22),
    "max_srq_wqes": (1, 1 << 20),
    "max_inline": (0, 4096),
    "max_mtu": (1, 5),
}

#: Sleep, link and change events, shut-down of ports, RC RNR NAKs: what a verbs user is told of.
DEVICE_CAP_FLAGS: Final = 0x1321C66

RESERVED_QPS: Final = 1024
RESERVED_CQS: Final = 128
RESERVED_SRQS: Final = 64
RESERVED_MPTS: Final = 12
RESERVED_MTT_SEGMENTS: Final = 16
RESERVED_PDS: Final = 3
RESERVED_UARS: Final = 1
LOG_MAX_EQS: Final = 5
GID_TABLE_LENGTH: Final = 32
PKEY_TABLE_LENGTH: Final = 64
LOCAL_ACK_DELAY: Final = 15


def device_limits(settings: HcaSettings) -> DeviceLimits:
    """Return what QUERY_DEV_LIM answers under these settings."""
    usable_qps = (1 << settings.log_max_qps) - RESERVED_QPS
    return DeviceLimits(
        log_max_qps=settings.log_max_qps,
        reserved_qps=RESERVED_QPS,
        log_max_cqs=settings.log_max_cqs,
        reserved_cqs=RESERVED_CQS,
        log_max_srqs=settings.log_max_srqs,
        reserved_srqs=RESERVED_SRQS,
        log_max_mpts=settings.log_max_mpts,
        reserved_mpts=RESERVED_MPTS,
        reserved_mtt_segments=RESERVED_MTT_SEGMENTS,
        log_max_eqs=LOG_MAX_EQS,
        reserved_eqs=0,
        log_max_pds=settings.log_max_pds,
        reserved_pds=RESERVED_PDS,
        reserved_uars=RESERVED_UARS,
        log_max_mgms=settings.log_max_mgms,
        max_wqes=settings.max_wqes,
        max_sges=settings.max_sges,
        log_max_cqes=settings.log_max_cqes,
        max_srq_wqes=settings.max_srq_wqes,
        max_inline=settings.max_inline,
        ports=settings.ports,
        max_mtu=settings.max_mtu,
        gid_table_length=GID_TABLE_LENGTH,
        pkey_table_length=PKEY_TABLE_LENGTH,
        local_ack_delay=LOCAL_ACK_DELAY,
        flags=DEVICE_CAP_FLAGS,
        log_max_rdb_per_qp=settings.max_qp_rd_atom.bit_length() - 1,
        max_responder_resources=settings.max_qp_rd_atom * usable_qps,
    )


def encode_settings(settings: HcaSettings) -> bytes:
    """Return the settings as JSON, for the first packet to the HCA's process."""
    return json.dumps(settings._asdict()).encode()


def decode_settings(text: bytes | str) -> HcaSettings:
    """Read what `encode_settings` wrote; raise HcaSettingsError if it cannot be used."""
    try:
        values: Any = json.loads(text)
    except ValueError as error:
        raise HcaSettingsError(f"the settings are not JSON: {error}") from error
    if not isinstance(values, dict):
        raise HcaSettingsError("the settings are not a JSON object")
    kinds = HcaSettings.__annotations__
    for name, value in values.items():
        kind = kinds.get(name)
        if kind is None:
            raise HcaSettingsError(f"there is no setting {name}")
        fits = isinstance(value, (int, float)) if kind is float else type(value) is kind
        if not fits or isinstance(value, bool):
            raise HcaSettingsError(f"{name} cannot be {value!r}")
    return HcaSettings(**values)
