"""Experiment `command-times`: the commands of each control verb, under means from 10 us to 1 s.

A cell asks for one mean command time, the same for every command; a kernel client then carries out
each verb once, having made one object of each kind before. The virtual clock counts what the
latency model asks of the HCA and nothing else. What an emulated command takes of this machine's
own time is measured in the first cell, without a model.

Spec: docs/latency-models.md; the classes of commands: "[RFC v2] Kernel Async Verbs".
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from kernel_proc.channel_interface.command_journal import (
    IOCTL_INTERNAL_READ_JOURNAL,
    CommandJournal,
)
from kernel_proc.channel_interface.verbs_table import VerbsTable
from kernel_proc.clients import verb_steps
from kernel_proc.clients.verbs_connection import ask_driver, opened_verbs
from kernel_proc.experiments import control_verbs
from kernel_proc.experiments.experiment import DONE, Progress, Row, run_cell
from kernel_proc.experiments.sample_figures import in_us, listed
from kernel_proc.hca.latency_model import CLASS_BOUND_NS, EVENT_OVERHEAD, PLAUSIBLE
from kernel_proc.hca_abi.command_opcodes import COMMANDS
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared import verb_codes as codes
from shared.clock import now_ns
from shared.verb_codes import HCA_DEVICE
from shared.verb_messages import CreateAh, Object, PortQuery
from shared.verbs_enums import ibv_access_flags, ibv_mtu

MEANS_US: Final = (10, 32, 100, 320, 1_000, 3_200, 10_000, 32_000, 100_000, 320_000, 1_000_000)
CONNECTION: Final = "connection, a side"
_OTHERS: Final = (
    "query_gid", "query_pkey", "modify_port", "resize_cq", "create_srq", "modify_srq", "query_srq",
    "destroy_srq", "attach_mcast", "detach_mcast", "alloc_mw", "dealloc_mw",
)  # fmt: skip
_OF_VERB: Final = ("verb", "outcome", "commands", "classes", "real_us")
_PORT: Final = 1
_DEPTH: Final = 32
_CQE: Final = 127
_REGION: Final = 4096
_TOLERANCE: Final = 1e-3  # the model computes with logarithms
_ACCESS: Final = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)
_MTU: Final = int(ibv_mtu.IBV_MTU_1024)

Step = tuple[str, Callable[[], Any]]


class Verbs:
    """One object of each kind, made and ended by a kernel client, verb by verb."""

    def __init__(self, table: VerbsTable) -> None:
        self._table = table
        self._pd = self._mr = self._ah = self._cq = self._qp = self._qpn = self._lid = 0

    def makers(self) -> list[Step]:
        """Return the verbs that make and use objects, in order."""
        return [
            ("query_device", lambda: self._do(codes.IOCTL_QUERY_DEVICE)),
            ("query_port", self._query_port),
            ("alloc_pd", self._alloc_pd),
            ("reg_mr", self._reg_mr),
            ("create_ah", self._create_ah),
            ("create_cq", self._create_cq),
            ("create_qp", self._create_qp),
            (CONNECTION, self._connect),
            ("query_qp", lambda: self._do(codes.IOCTL_QUERY_QP, Object(self._qp))),
        ]

    def enders(self) -> list[Step]:
        """Return the verbs that end them, in order."""
        return [
            ("destroy_qp", lambda: self._do(codes.IOCTL_DESTROY_QP, Object(self._qp))),
            ("destroy_cq", lambda: self._do(codes.IOCTL_DESTROY_CQ, Object(self._cq))),
            ("destroy_ah", lambda: self._do(codes.IOCTL_DESTROY_AH, Object(self._ah))),
            ("dereg_mr", lambda: self._do(codes.IOCTL_DEREG_MR, Object(self._mr))),
            ("dealloc_pd", lambda: self._do(codes.IOCTL_DEALLOC_PD, Object(self._pd))),
        ]

    def _do(self, code: int, request: Any = None) -> Any:
        return verb_steps.do(self._table, code, request)

    def _query_port(self) -> None:
        self._lid = self._do(codes.IOCTL_QUERY_PORT, PortQuery(_PORT)).lid

    def _alloc_pd(self) -> None:
        self._pd = self._do(codes.IOCTL_ALLOC_PD).handle

    def _reg_mr(self) -> None:
        answer = self._table.register_memory(self._pd, _REGION, _ACCESS)
        self._mr = verb_steps.require(answer, "reg_mr").reply.handle

    def _create_ah(self) -> None:
        request = CreateAh(self._pd, _PORT, self._lid, 0, 0, 0, 0, bytes(16), 0, 0, 0, 0)
        self._ah = self._do(codes.IOCTL_CREATE_AH, request).handle

    def _create_cq(self) -> None:
        self._cq = verb_steps.make_cq(self._table, _CQE)

    def _create_qp(self) -> None:
        request = verb_steps.qp_request(
            verb_steps.RC, self._pd, (self._cq, self._cq), max_send_wr=_DEPTH, max_recv_wr=_DEPTH
        )
        made = self._do(codes.IOCTL_CREATE_QP, request)
        self._qp, self._qpn = made.handle, made.qpn

    def _connect(self) -> None:
        verb_steps.connect(self._table, self._qp, self._qpn, _PORT, self._lid, mtu=_MTU)


def _journal(machine: Machine, after: int) -> CommandJournal:
    """Return the commands of the verbs after a number."""
    found: list[CommandJournal] = []
    ask_driver(machine.io.devices[HCA_DEVICE], IOCTL_INTERNAL_READ_JOURNAL, after, found)
    return found[0]


def _perform(machine: Machine) -> list[Row]:
    """Carry out every verb; return a row for each."""
    with opened_verbs(machine.io) as table:
        for _, step in Verbs(table).makers():  # the first of its kind maps tables of the HCA
            step()
        verbs = Verbs(table)
        rows = [_timed(machine, *step) for step in (*verbs.makers(), *verbs.enders())]
        others = control_verbs.Verbs(machine, table)
        for name in _OTHERS:
            others.ready(name)()
            rows.append(_timed(machine, name, others.ready(name)))
    return rows


def _timed(machine: Machine, name: str, step: Callable[[], object]) -> Row:
    """Carry out one verb; return its commands, and its time by both clocks."""
    clock = machine.processor.clock
    before = _journal(machine, 0).verbs
    begin, began = clock.now_ns(), now_ns()
    step()
    real_ns, took_ns = now_ns() - began, clock.now_ns() - begin
    records = [one for one in _journal(machine, before).records if one.verb > before]
    return {
        "verb": name,
        "commands": len(records),
        "classes": "".join(COMMANDS[one.opcode].time_class for one in records),
        "command_us": in_us(took_ns),
        "real_us": in_us(real_ns),
    }


def _model(mean_us: int) -> str:
    """Return a latency model under which every command takes the same time."""
    groups = [group for group in PLAUSIBLE if group != EVENT_OVERHEAD]
    return "".join(f"[{group}]\nmedian_us = {mean_us}\np99_us = {mean_us}\n" for group in groups)


class CommandTimes:
    """The experiment; `means_us` are the mean command times it asks for."""

    name = "command-times"
    question = "How many commands of which class does a control verb take, and how long?"

    def __init__(self, means_us: Sequence[int] = MEANS_US) -> None:
        self._means_us = means_us

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Take every verb without a model, then under each mean; one row for each verb."""
        total = len(self._means_us) + 1
        verbs: dict[str, Row] = {}
        stopped: list[Row] = []
        for done, mean_us in enumerate((0, *self._means_us)):
            progress(done, total, f"mean command time {mean_us} us")
            for row in self._cell(mean_us):
                if "verb" not in row:
                    stopped.append({"verb": f"mean {mean_us} us", **row})
                    continue
                verb = verbs.setdefault(row["verb"], {key: row[key] for key in _OF_VERB})
                if mean_us:
                    verb[time_key(mean_us)] = row["command_us"]
        return [*verbs.values(), *stopped]

    def _cell(self, mean_us: int) -> list[Row]:
        with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as model:
            model.write(_model(mean_us))
            model.flush()
            settings = KernelSettings(seed=1, latency_model=model.name if mean_us else "none")

            def body(machine: Machine) -> Mapping[str, Any]:
                return {"verbs": machine.processor.run_thread(_perform, machine)}

            cell = run_cell({"mean_us": mean_us}, body, settings)
        verbs = cell.pop("verbs", [{}])
        return [{**cell, **verb} for verb in verbs]

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say what the model did, what it could not, and what an emulated command really takes."""
        verbs = [row for row in rows if row["outcome"] == DONE]
        sending = [row for row in verbs if row["commands"]]
        floor_us = median(row["real_us"] / row["commands"] for row in sending)
        none = [row["verb"] for row in verbs if not row["commands"]]
        sent = "".join(row["classes"] for row in sending)
        exact, cut = True, set()
        for row in sending:
            for mean_us in self._means_us:
                bound_us = _bounded_us(row["classes"], mean_us)
                exact &= _close(row[time_key(mean_us)], bound_us)
                if bound_us < mean_us * row["commands"]:
                    cut |= {one for one in row["classes"] if mean_us > _bound_us(one)}
        return (
            f"On the virtual clock a verb {'takes' if exact else 'does not take'} its commands "
            f"times the mean, those of class {listed(sorted(cut))} cut at their bounds. An "
            f"emulated command really takes {floor_us:.0f} us of this machine (median, the verb "
            "around it included): a mean below that exists on the virtual clock only. "
            f"{listed(none)} take no command. Of the {len(sent)} that the verbs sent, "
            f"{listed([f'{sent.count(one)} are of class {one}' for one in sorted(set(sent))])}."
        )


def time_key(mean_us: int) -> str:
    """Return the key of what a verb took under a mean."""
    return f"at_{mean_us}_us"


def _bound_us(letter: str) -> float:
    return CLASS_BOUND_NS[letter] / 1_000


def _bounded_us(classes: str, mean_us: int) -> float:
    """Return what commands of these classes take if each takes the mean, or its bound."""
    return sum(min(mean_us, _bound_us(one)) for one in classes)


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _TOLERANCE * other


COMMAND_TIMES: Final = CommandTimes()
