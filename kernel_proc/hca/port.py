"""One port: its state, addresses, tables and counters, events when they change, and its link.

All ports are joined by one subnet: what is sent goes to the port whose LID it names.

There is no subnet manager: ports have their LIDs from the start, come up ACTIVE, and name no LID
at which one would answer.

Spec: IBA vol. 1, 14.2.5.6 (PortInfo), 10.9 (P_Keys).
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from kernel_proc.hca.event_table import EventTable
from kernel_proc.hca.packets import NOTHING, Answer, Request
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi.device_settings import GID_TABLE_LENGTH, PKEY_TABLE_LENGTH
from shared.verbs_enums import ibv_port_state

DOWN: Final = int(ibv_port_state.IBV_PORT_DOWN)
ACTIVE: Final = int(ibv_port_state.IBV_PORT_ACTIVE)
PHYSICAL_DISABLED: Final = 3
PHYSICAL_LINK_UP: Final = 5
WIDTH_4X: Final = 2
SPEED_DDR: Final = 2
DEFAULT_PKEY: Final = 0xFFFF
LINK_LOCAL_PREFIX: Final = 0xFE80 << 48
NO_LID: Final = 0
FIRST_UNICAST_LID: Final = 1
LAST_UNICAST_LID: Final = 0xBFFF
PERMISSIVE_LID: Final = 0xFFFF
_MOST_VIOLATIONS: Final = 0xFFFF

# Client reregistration and system image GUID; others are claimed by who provides them (SET_IB).
_CAPABILITIES: Final = 1 << 25 | 1 << 11


class Port:
    """A port; `number` counts from 1."""

    def __init__(self, number: int, guid: int, max_mtu: int, events: EventTable) -> None:
        self.number: Final = number
        self.guid: Final = guid
        self.max_mtu: Final = max_mtu
        self._events: Final = events
        self.state = DOWN
        self.mtu = max_mtu
        self.lid = number
        self.sm_lid = NO_LID
        self.sm_sl = 0
        self.lmc = 0
        self.capabilities = _CAPABILITIES
        self.gid_prefix = LINK_LOCAL_PREFIX
        self.guids = [guid, *[0] * (GID_TABLE_LENGTH - 1)]
        self.pkeys = [DEFAULT_PKEY, *[0] * (PKEY_TABLE_LENGTH - 1)]
        self.pkey_violations = 0
        self.qkey_violations = 0
        self.version = 0  # of what paths are made of: LID, GIDs, P_Keys
        self.drops: Final[Counter[str]] = Counter()
        self._subnet: list[Port] = [self]
        self._receive: Callable[[Port, Request], Answer] = lambda port, request: NOTHING

    def join(self, subnet: "list[Port]", receive: "Callable[[Port, Request], Answer]") -> None:
        """Be linked to these ports; `receive` takes what arrives."""
        self._subnet = subnet
        self._receive = receive

    def send(self, request: Request) -> Answer:
        """Let a request out, and return what its responder answers, or NOTHING."""
        if self.state != ACTIVE:
            self.drops["port down"] += 1
            return NOTHING
        dlid = request.path.dlid
        for port in self._subnet:
            if port.lid == dlid:
                if port.state == ACTIVE:
                    return port._receive(port, request)
                return port.take(request)
        if LAST_UNICAST_LID < dlid < PERMISSIVE_LID:
            for port in self._subnet:
                port.take(request)
            return NOTHING
        self.drops["nobody has the LID"] += 1
        return NOTHING

    def take(self, request: Request) -> Answer:
        """Let a request in."""
        if self.state != ACTIVE:
            self.drops["port down"] += 1
            return NOTHING
        return self._receive(self, request)

    @property
    def path_bits(self) -> int:
        """The low bits of a LID that tell this port's paths apart."""
        return (1 << self.lmc) - 1

    def has_gid(self, gid: bytes) -> bool:
        """Say whether a GID is one of this port's."""
        prefix, guid = divmod(int.from_bytes(gid, "big"), 1 << 64)
        return prefix == self.gid_prefix and guid != 0 and guid in self.guids

    def count_bad_pkey(self) -> None:
        """Count a packet of another partition."""
        self.pkey_violations = min(self.pkey_violations + 1, _MOST_VIOLATIONS)

    def count_bad_qkey(self) -> None:
        """Count a datagram with another Q_Key."""
        self.qkey_violations = min(self.qkey_violations + 1, _MOST_VIOLATIONS)

    def reset(self) -> None:
        """Be down, without an event: the device was stopped."""
        self.state = DOWN

    def gid(self, index: int) -> bytes:
        """Return a GID of the table, zero if the place is empty."""
        guid = self.guids[index]
        return (self.gid_prefix << 64 | guid).to_bytes(16, "big") if guid else bytes(16)

    def set_state(self, state: int) -> None:
        """Bring the link up or down; the event tells a change."""
        if state == self.state:
            return
        self.state = state
        self._events.port(self.number, eqe.PORT_UP if state == ACTIVE else eqe.PORT_DOWN)

    def set_lid(self, lid: int, sm_lid: int, sm_sl: int) -> None:
        """Take a LID and the subnet manager's; events tell changes."""
        if lid != self.lid:
            self.lid = lid
            self.version += 1
            self._events.port(self.number, eqe.PORT_LID_CHANGE)
        if (sm_lid, sm_sl) != (self.sm_lid, self.sm_sl):
            self.sm_lid, self.sm_sl = sm_lid, sm_sl
            self._events.port(self.number, eqe.PORT_SM_CHANGE)

    def ask_to_reregister(self) -> None:
        """Have clients join their groups anew: the subnet manager knows them no more."""
        self._events.port(self.number, eqe.PORT_CLIENT_REREGISTER)

    def set_gid_prefix(self, prefix: int) -> None:
        """Take the subnet's prefix."""
        if prefix != self.gid_prefix:
            self.gid_prefix = prefix
            self.version += 1
            self._events.port(self.number, eqe.PORT_GID_CHANGE)

    def set_guids(self, first: int, guids: list[int]) -> None:
        """Replace GUIDs from `first` on; the first of all is the port's own and stays."""
        if first == 0:
            guids = [self.guid, *guids[1:]]
        if self.guids[first : first + len(guids)] != guids:
            self.guids[first : first + len(guids)] = guids
            self.version += 1
            self._events.port(self.number, eqe.PORT_GID_CHANGE)

    def set_pkeys(self, first: int, pkeys: list[int]) -> None:
        """Replace P_Keys from `first` on."""
        if self.pkeys[first : first + len(pkeys)] != pkeys:
            self.pkeys[first : first + len(pkeys)] = pkeys
            self.version += 1
            self._events.port(self.number, eqe.PORT_PKEY_CHANGE)

    def inspect(self) -> dict[str, object]:
        """Return state and addresses."""
        return {
            "state": "active" if self.state == ACTIVE else "down",
            "lid": self.lid,
            "sm_lid": self.sm_lid,
            "gid": self.gid(0).hex(),
            "gids": [self.gid(n).hex() for n, guid in enumerate(self.guids) if guid],
            "pkeys": [pkey for pkey in self.pkeys if pkey],
            "pkey_violations": self.pkey_violations,
            "qkey_violations": self.qkey_violations,
            "drops": dict(self.drops),
        }
