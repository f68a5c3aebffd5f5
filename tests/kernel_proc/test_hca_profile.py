"""Profiles of the HCA: every key does what it says, wrong files are a sentence, the page holds."""

import re
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.hca_abi import device_settings
from kernel_proc.hca_abi.device_settings import HcaSettings, HcaSettingsError
from kernel_proc.hca_profile import KEYS, read_profile
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from user_proc.errors import KernelStartFailed
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPCap, QPInitAttr

PAGE = Path(__file__).parents[2] / "docs" / "device-profiles.md"
OF_THE_KERNEL = {
    "latency_model", "latency_factor", "seed", "spin_hint", "idle_spin_us", "max_qp_rd_atom",
}  # fmt: skip
RANGES = {name: device_settings._RANGES[name] for name in KEYS}


@contextmanager
def device(file: Path, **settings: Any) -> Iterator[tuple[Machine, Context]]:
    machine = Machine(KernelSettings(hca_profile=str(file), **settings), in_process=True)
    machine.start_hca()
    with (
        UserProcess.in_process(machine.connect_in_process("profile")) as process,
        Context(name="mthca0", process=process) as context,
    ):
        yield machine, context
    machine.close()


def inline_of(context: Context) -> int:
    """The most inline data a queue pair can have."""
    cq, pd = CQ(context, 1), PD(context)
    for most in (0, 96, 400, 4096):
        try:
            attr = QPInitAttr(int(e.IBV_QPT_RC), scq=cq, rcq=cq, cap=QPCap(1, 1, 1, 1, most + 1))
            QP(pd, attr).close()
        except PyverbsRDMAError:
            return most
    return -1


def seen(machine: Machine, context: Context) -> dict[str, int]:
    """What of each key a program sees."""
    found, port = context.query_device(), context.query_port(1)
    return {
        "node_guid": int.from_bytes(found.node_guid.to_bytes(8, "big"), "little"),
        "ports": found.phys_port_cnt,
        "max_mtu": port.max_mtu,
        "max_wqes": found.max_qp_wr,
        "max_sges": found.max_sge,
        "max_inline": inline_of(context),
        "max_srq_wqes": found.max_srq_wr,
        "log_max_qps": (found.max_qp + 1024).bit_length() - 1,
        "log_max_cqs": (found.max_cq + 128).bit_length() - 1,
        "log_max_cqes": (found.max_cqe + 1).bit_length() - 1,
        "log_max_srqs": (found.max_srq + 64).bit_length() - 1,
        "log_max_mpts": (found.max_mr + 16).bit_length() - 1,
        "log_max_mtt_segments": mtt_segments(machine),
        "log_max_pds": (found.max_pd + 4).bit_length() - 1,
        "log_max_mgms": found.max_mcast_grp.bit_length() - 1,
    }


def mtt_segments(machine: Machine) -> int:
    assert machine.hca is not None
    return int(machine.hca.inspect()["driver"]["hca"]["limits"]["log_mtt_segments"])


def test_the_keys_are_all_settings_but_those_of_the_kernel():
    assert set(KEYS) == set(HcaSettings._fields) - OF_THE_KERNEL


@pytest.mark.parametrize("which", ["least", "most", "default"])
def test_every_key_is_seen_by_programs(tmp_path: Path, which: str):
    file = tmp_path / "profile.toml"
    default = HcaSettings()
    values = {
        "least": {name: int(least) for name, (least, _) in RANGES.items()},
        "most": {name: int(most) for name, (_, most) in RANGES.items()},
        "default": {name: getattr(default, name) for name in KEYS},
    }[which]
    values["node_guid"] &= (1 << 63) - 1  # what TOML must be able to hold
    file.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
    with device(file) as (machine, context):
        assert seen(machine, context) == values


@pytest.mark.parametrize("name", KEYS)
def test_a_value_out_of_range_is_a_sentence(tmp_path: Path, name: str):
    file = tmp_path / "profile.toml"
    for value in (int(RANGES[name][0]) - 1, int(RANGES[name][1]) + 1):
        file.write_text(f"{name} = {value}")
        with pytest.raises(HcaSettingsError, match=rf"profile {file}: {name} must lie between"):
            read_profile(str(file))


WRONG = {
    b"speed = 5": " has 'speed', which is none of node_guid, ports,",
    b"max_qp_rd_atom = 8": " has 'max_qp_rd_atom', which is none of",
    b"[ports]": ": ports is a whole number, not {}",
    b"ports = true": ": ports is a whole number, not True",
    b"ports = 2.0": ": ports is a whole number, not 2.0",
    b"ports = ": " is not TOML: ",
    b"ports = 1\nports = 2": " is not TOML: ",
    b"\xff\xfe": " is not TOML: ",
    b"a = " + b"[" * 5000: " is not TOML: ",
    b"#" * 70_000: " has more than 65536 bytes",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_wrong_file_is_a_sentence(tmp_path: Path, text: bytes):
    file = tmp_path / "profile.toml"
    file.write_bytes(text)
    with pytest.raises(HcaSettingsError) as caught:
        Machine(KernelSettings(hca_profile=str(file)), in_process=True)
    assert str(caught.value).startswith(f"the profile {file}{WRONG[text]}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["", "nowhere.toml"])
def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path, place: str):
    with pytest.raises(HcaSettingsError, match=r"^the profile .* cannot be read: "):
        read_profile(str(tmp_path / place))


def test_the_example_of_the_page_gives_the_figures_of_the_page(tmp_path: Path):
    text = PAGE.read_text(encoding="utf-8")
    example = text.split("```toml\n")[1].split("```")[0]
    figures = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|$", text, re.MULTILINE))
    assert len(figures) == 14
    file = tmp_path / "soft.toml"
    file.write_text(example)
    with device(file, max_qp_rd_atom=128) as (_, context):
        found = context.query_device()
        assert {name: str(getattr(found, name)) for name in figures} == figures


def test_the_keys_of_the_page_are_the_keys():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\d+), (\S+) ", PAGE.read_text(), re.MULTILINE)
    assert [name for name, *_ in rows] == list(KEYS)
    for name, default, least, most in rows:
        assert int(default, 0) == getattr(HcaSettings(), name)
        assert int(least) == RANGES[name][0]
        power, _, less = most.removesuffix("-").partition("^")
        known = 1 << int(less) if less else int(power)
        assert known - (256 if name == "node_guid" else 0) == RANGES[name][1]


def test_a_profile_is_toml_of_whole_numbers(tmp_path: Path):
    file = tmp_path / "profile.toml"
    file.write_text("ports = 1 # one\nnode_guid = 0x2c9_0002\n")
    assert read_profile(str(file)) == {"ports": 1, "node_guid": 0x2C9_0002}
    assert tomllib.loads(file.read_text()) == read_profile(str(file))


@pytest.mark.processes
def test_a_kernel_process_finds_it_from_the_folder_of_its_starter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = f"profile-{uuid.uuid4().hex[:8]}"
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text("ports = 1\nmax_wqes = 64\n")
    settings = {"hca_profile": "small.toml"}
    with (
        start_kernel(name, settings=settings),
        Context(name="mthca0", kernel=name) as context,
    ):
        found = context.query_device()
        assert (found.phys_port_cnt, found.max_qp_wr) == (1, 64)
    Path("small.toml").write_text("ports = 3\n")
    with pytest.raises(
        KernelStartFailed, match=r"small.toml: ports must lie between 1 and 2, not 3"
    ):
        start_kernel(name, settings=settings)
