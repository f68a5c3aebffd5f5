"""A profile of the HCA: a TOML file with the sizes of its tables and queues, and its identity.

What the file leaves out is as an InfiniHost III Ex has it.

Spec: docs/device-profiles.md.
"""

from typing import Any, Final

from kernel_proc.hca_abi.device_settings import HcaSettings, HcaSettingsError

#: What a profile may say; the rest of HcaSettings are options of the kernel.
KEYS: Final = (
    "node_guid", "ports", "max_mtu", "max_wqes", "max_sges", "max_inline", "max_srq_wqes",
    "log_max_qps", "log_max_cqs", "log_max_cqes", "log_max_srqs", "log_max_mpts",
    "log_max_mtt_segments", "log_max_pds", "log_max_mgms",
)  # fmt: skip

_MOST_BYTES: Final = 1 << 16


def read_profile(path: str) -> dict[str, Any]:
    """Return what a file says; HcaSettingsError is one sentence with the file and the key."""
    import tomllib  # takes long to import, and few starts have such a file

    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise HcaSettingsError(f"the profile {path} has more than {_MOST_BYTES} bytes")
        found = tomllib.loads(text.decode())
    except OSError as error:
        raise HcaSettingsError(f"the profile {path} cannot be read: {error.strerror}") from error
    except HcaSettingsError:
        raise
    except (ValueError, RecursionError) as error:
        raise HcaSettingsError(f"the profile {path} is not TOML: {error}") from error
    for name, value in found.items():
        if name not in KEYS:
            raise HcaSettingsError(
                f"the profile {path} has {name!r}, which is none of {', '.join(KEYS)}"
            )
        if type(value) is not int:
            raise HcaSettingsError(f"the profile {path}: {name} is a whole number, not {value!r}")
    try:
        HcaSettings(**found)
    except HcaSettingsError as error:
        raise HcaSettingsError(f"the profile {path}: {error}") from error
    return found
