"""Where a side is: what the two sides of a tool tell each other before they connect.

Rules: what the other side says is checked, since a stranger may have connected.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from user_proc.perftest.peer_link import field
from user_proc.perftest.tool_errors import ToolFailed
from user_proc.verbs.addr import GID
from user_proc.verbs.pyverbs_error import PyverbsError


@dataclass(frozen=True, slots=True)
class Address:
    """One side's."""

    lid: int
    gid: str
    qps: tuple[tuple[int, int], ...]  # number and first PSN
    rkey: int
    base: int

    def fields(self) -> dict[str, object]:
        """Give it as a message."""
        return {
            "lid": self.lid,
            "gid": self.gid,
            "qps": self.qps,
            "rkey": self.rkey,
            "base": self.base,
        }

    @classmethod
    def of(cls, message: Mapping[str, Any], qps: int) -> "Address":
        """Read a message; ToolFailed unless it has so many queue pairs."""
        try:
            pairs = tuple((int(qpn), int(psn)) for qpn, psn in field(message, "qps", list))
        except (TypeError, ValueError) as error:
            raise ToolFailed("the other side's addresses cannot be understood") from error
        numbers = [number for pair in pairs for number in pair]
        lid, key, base = (field(message, name, int) for name in ("lid", "rkey", "base"))
        gid = field(message, "gid", str)
        bounds = [(number, 24) for number in numbers] + [(lid, 16), (key, 32), (base, 64)]
        if any(not 0 <= number < 1 << bits for number, bits in bounds) or not _is_gid(gid):
            raise ToolFailed("the other side's addresses cannot be understood")
        if len(pairs) != qps:
            raise ToolFailed(f"the other side has {len(pairs)} queue pairs, this one {qps}")
        return cls(lid, gid, pairs, key, base)


def _is_gid(text: str) -> bool:
    """Tell whether it is a GID, or nothing, which stands for none."""
    with contextlib.suppress(PyverbsError, ValueError):
        return not text or bool(GID(text).gid)
    return False
