"""The latency model's draws, and the times commands take by it."""

import statistics
from pathlib import Path

import pytest

from kernel_proc.hca.latency_model import (
    CLASS_BOUND_NS,
    EVENT_OVERHEAD,
    PLAUSIBLE,
    LatencyModel,
    LatencyModelError,
)
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.device_settings import (
    HcaSettings,
    HcaSettingsError,
    decode_settings,
    encode_settings,
)
from tests.kernel_proc.hca.hca_bench import Bench

DRAWS = 20_000
ONE_OF_EACH_GROUP = {kind.group: kind.opcode for kind in op.COMMANDS.values()}


def draws(model: LatencyModel, opcode: int, count: int = DRAWS, entries: int = 0) -> list[int]:
    return [model.service_ns(opcode, entries) for _ in range(count)]


def test_every_group_of_a_command_has_a_spread():
    assert {kind.group for kind in op.COMMANDS.values()} | {EVENT_OVERHEAD} == set(PLAUSIBLE)


@pytest.mark.parametrize("group", sorted(ONE_OF_EACH_GROUP))
def test_median_and_p99_are_the_parameters_and_the_class_is_the_bound(group: str):
    opcode = ONE_OF_EACH_GROUP[group]
    sample = draws(LatencyModel("plausible", seed=5), opcode)
    spread = PLAUSIBLE[group]
    assert statistics.median(sample) == pytest.approx(spread.median * 1000, rel=0.03)
    p99 = statistics.quantiles(sample, n=100)[98]
    assert p99 == pytest.approx(spread.p99 * 1000, rel=0.15)
    assert max(sample) <= CLASS_BOUND_NS[op.COMMANDS[opcode].time_class]


def test_none_takes_no_time_and_the_ceiling_takes_the_class():
    none, ceiling = LatencyModel("none"), LatencyModel("prm-ceiling", factor=3)
    for opcode, kind in op.COMMANDS.items():
        assert none.service_ns(opcode, 99) == 0
        assert ceiling.service_ns(opcode, 99) == CLASS_BOUND_NS[kind.time_class]
    assert none.event_overhead_ns() == ceiling.event_overhead_ns() == 0
    assert ceiling.service_ns(0x777) == 0


def test_streams_are_fixed_and_independent():
    first, second = LatencyModel("plausible", seed=7), LatencyModel("plausible", seed=7)
    expected = draws(first, op.SW2HW_CQ, 50)
    draws(second, op.WRITE_MTT, 33)
    second.event_overhead_ns()
    assert draws(second, op.SW2HW_CQ, 50) == expected
    assert draws(LatencyModel("plausible", seed=8), op.SW2HW_CQ, 50) != expected


def test_entries_add_and_the_factor_multiplies():
    plain, many = (draws(LatencyModel("plausible"), op.WRITE_MTT, 200, n) for n in (0, 510))
    for without, with_entries in zip(plain, many, strict=True):
        assert with_entries - without == pytest.approx(510 * 80, abs=2)
    tenth = draws(LatencyModel("plausible", factor=0.1), op.WRITE_MTT, 200)
    assert tenth == pytest.approx([value / 10 for value in plain], abs=2)
    assert draws(LatencyModel("plausible", factor=0.0), op.WRITE_MTT, 3) == [0, 0, 0]
    huge = draws(LatencyModel("plausible", factor=1000), op.QUERY_FW, 200)
    assert max(huge) == CLASS_BOUND_NS["A"]


def test_connecting_takes_half_to_two_milliseconds():
    model = LatencyModel("plausible")
    steps = (op.RST2INIT_QPEE, op.INIT2RTR_QPEE, op.RTR2RTS_QPEE)
    times = [sum(model.service_ns(step) for step in steps) for _ in range(3000)]
    assert 500_000 < statistics.mean(times) < 2_000_000


def test_registration_costs_a_quarter_microsecond_a_page_with_pinning():
    model = LatencyModel("plausible")
    spread = PLAUSIBLE["mtt"]
    assert 0.25 <= spread.per_entry + 0.17 <= 0.47
    times = [
        sum(model.service_ns(op.WRITE_MTT, n) for n in (510, 510, 4))
        + model.service_ns(op.SW2HW_MPT)
        for _ in range(2000)
    ]
    assert 115_000 < statistics.median(times) + 1024 * 170 < 500_000


def test_a_file_gives_groups_on_a_base(tmp_path: Path):
    path = tmp_path / "model.toml"
    path.write_text('base = "plausible"\n[query]\nmedian_us = 3\np99_us = 3\n[nop]\n')
    model = LatencyModel(str(path))
    assert draws(model, op.QUERY_FW, 3) == pytest.approx([3000] * 3, abs=1)
    assert model.service_ns(op.NOP) == 0
    plausible = LatencyModel("plausible")
    assert model.service_ns(op.SW2HW_CQ) == plausible.service_ns(op.SW2HW_CQ)
    path.write_text("[query]\nmedian_us = 3\n")
    assert LatencyModel(str(path)).service_ns(op.SW2HW_CQ) == 0


@pytest.mark.parametrize(
    "text",
    [
        "query = 3",
        "[quary]\nmedian_us = 1",
        "[query]\nmedian = 1",
        "[query]\nmedian_us = -1",
        "[query]\nmedian_us = nan",
        "[query]\nmedian_us = true",
        "[query]\nmedian_us = 'x'",
        "[query]\nmedian_us = 5\np99_us = 4",
        "base = 'prm-ceiling'",
        "base = ['none']",
        "[query",
        "\udcff",
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "model.toml"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(LatencyModelError):
        LatencyModel(str(path))
    with pytest.raises(LatencyModelError):
        LatencyModel(str(tmp_path / "absent.toml"))


# Commands in time


def modelled(name: str) -> Bench:
    return Bench(HcaSettings(latency_model=name)).bring_up()


def test_a_polled_command_takes_effect_when_its_time_is_over():
    bench = modelled("prm-ceiling")
    start = bench.now
    bench.post(op.CLOSE_IB, modifier=1)
    assert bench.device.run_once()
    assert not bench.device.run_once()
    assert bench.control & reg.HCR_GO_BIT
    assert bench.device.next_deadline_ns() == start + 1_000_000
    assert bench.tables.ports[0].state == 4
    bench.now = start + 1_000_000
    assert bench.device.run_once()
    assert not bench.control & reg.HCR_GO_BIT
    assert bench.tables.ports[0].state == 1


def test_one_lane_executes_first_come_first_served():
    bench = modelled("prm-ceiling")
    start = bench.now
    for token, opcode in enumerate((op.MAP_EQ, op.NOP, op.NOP)):
        bench.post(opcode, modifier=reg.ASYNC_EQ, event=True, token=token)
        bench.device.run_once()
        assert not bench.control & reg.HCR_GO_BIT
    done = []
    while (due := bench.device.next_deadline_ns()) is not None:
        bench.now = due
        bench.settle()
        done += [
            (eqe.EQE_COMMAND.unpack_from(entry)[0], bench.now - start)
            for entry in bench.events(reg.COMMAND_EQ)
        ]
    assert done == [(0, 10_000_000), (1, 11_000_000), (2, 12_000_000)]


def test_sixty_four_commands_are_accepted_and_the_next_waits():
    bench = modelled("prm-ceiling")
    for token in range(64):
        bench.post(op.NOP, event=True, token=token)
        bench.device.run_once()
    bench.post(op.NOP, event=True, token=64)
    bench.device.run_once()
    assert bench.control & reg.HCR_GO_BIT
    due = bench.device.next_deadline_ns()
    assert due is not None
    bench.now = due
    bench.settle()
    assert not bench.control & reg.HCR_GO_BIT


def test_event_overhead_delays_the_event_and_not_the_lane():
    bench = modelled("plausible")
    for token in range(40):
        bench.post(op.NOP, event=True, token=token)
        bench.device.run_once()
    start = bench.now
    arrived = []
    while (due := bench.device.next_deadline_ns()) is not None:
        bench.now = due
        bench.settle()
        arrived += [bench.now] * len(bench.events(reg.COMMAND_EQ))
    times = bench.device.inspect()["command_interface"]["commands"]["NOP"]
    assert times["count"] == len(arrived) == 40
    assert times["achieved_ns"] >= times["asked_ns"] > 0
    assert arrived[-1] - start == pytest.approx(times["asked_ns"], rel=0.25)


# Settings


def test_settings_survive_their_journey():
    settings = HcaSettings(latency_model="plausible", latency_factor=0.3, seed=9, max_qp_rd_atom=16)
    assert decode_settings(encode_settings(settings)) == settings


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"latency": 1}',
        b'{"seed": "1"}',
        b'{"seed": true}',
        b'{"seed": -1}',
        b'{"ports": 3}',
        b'{"max_qp_rd_atom": 3}',
        b'{"latency_factor": NaN}',
        b'{"latency_factor": "x"}',
        b'{"latency_model": 5}',
        b'{"max_mtu": 6}',
    ],
)
def test_settings_that_cannot_be_are_refused(text: bytes):
    with pytest.raises(HcaSettingsError):
        decode_settings(text)
