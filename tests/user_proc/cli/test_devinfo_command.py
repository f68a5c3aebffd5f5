"""`softhca devinfo`: the labels of ibv_devinfo, the device's own values."""

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator

import pytest

from user_proc.transport.kernel_starter import StartedKernel, start_kernel
from user_proc.verbs.cq_ex import SUPPORTED_WC_FLAGS
from user_proc.verbs.device import Context, guid_format

pytestmark = pytest.mark.processes
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    with start_kernel(f"dev-{uuid.uuid4().hex[:8]}") as started:
        yield started
        assert started.running, started.log.read_text()


def test_the_short_form_tells_device_and_ports(softhca: Run, kernel: StartedKernel):
    done = softhca("devinfo", "--name", kernel.name)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    with Context(name="mthca0", kernel=kernel.name) as context:
        attributes = context.query_device()
    assert lines[0] == "hca_id: mthca0"
    assert "transport: InfiniBand (0)" in lines
    assert f"fw_ver: {attributes.fw_version}" in lines
    assert f"node_guid: {guid_format(attributes.node_guid)}" in lines
    assert "vendor_id: 0x02c9" in lines
    assert "vendor_part_id: 25218" in lines
    assert lines.count("state: PORT_ACTIVE (4)") == attributes.phys_port_cnt == 2
    assert [line for line in lines if line.startswith("port: ")] == ["port: 1", "port: 2"]
    assert "active_mtu: 4096 (5)" in lines
    assert not any(line.startswith(("max_qp:", "GID[")) for line in lines)


def test_verbose_tells_limits_flags_and_tables(softhca: Run, kernel: StartedKernel):
    done = softhca("devinfo", "-v", "-i", "2", "--name", kernel.name)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    with Context(name="mthca0", kernel=kernel.name) as context:
        attributes, port = context.query_device(), context.query_port(2)
        extended = context.query_device_ex()
        gid = str(context.query_gid(2, 0))
    for name in ("max_qp", "max_cqe", "max_pd", "max_srq_wr", "max_pkeys", "max_qp_rd_atom"):
        assert f"{name}: {getattr(attributes, name)}" in lines
    assert f"device_cap_flags: {attributes.device_cap_flags:#x}" in lines
    assert {"DEVICE_XRC", "DEVICE_PORT_ACTIVE_EVENT"} <= set(lines)
    assert "DEVICE_AUTO_PATH_MIG" not in lines
    assert "atomic_cap: ATOMIC_HCA (1)" in lines
    assert f"max_dm_size: {extended.max_dm_size} bytes" in lines
    assert f"hca_core_clock: {extended.hca_core_clock} kHz" in lines
    assert f"cq_ex_fields: {SUPPORTED_WC_FLAGS:#x}" in lines
    assert "num_comp_vectors: 1" in lines
    assert f"port_cap_flags: {port.port_cap_flags:#x}" in lines
    assert "active_width: 4X (2)" in lines
    assert f"GID[0]: {gid}" in lines
    assert "P_Key[0]: 0xffff" in lines
    assert "port: 1" not in lines


def test_data_and_words_tell_the_same(softhca: Run, kernel: StartedKernel):
    words = softhca("devinfo", "-v", "--name", kernel.name).stdout
    (device,) = json.loads(softhca("devinfo", "-v", "--json", "--name", kernel.name).stdout)
    assert device["send_ops_ud"] == ["SEND", "SEND_WITH_IMM"]
    assert (
        set(device["send_ops_uc"]) < set(device["send_ops_rc"]) == set(device["send_ops_xrc_send"])
    )
    ports = device.pop("ports")
    tables = [(port.pop("gids"), port.pop("pkeys")) for port in ports]
    labels = [line.split(":")[0].strip() for line in words.splitlines() if ":" in line]
    told = [label for label in labels if "[" not in label]
    assert told == [*device, *ports[0], *ports[1]]
    assert all(isinstance(port["max_mtu"], int) for port in ports)
    assert "DEVICE_XRC" in device["device_cap_flags"]
    assert [(len(gids), len(pkeys)) for gids, pkeys in tables] == [(1, 1), (1, 1)]
    assert tables[0][1] == [{"index": 0, "pkey": 0xFFFF}]


def test_the_list_has_only_names(softhca: Run, kernel: StartedKernel):
    assert softhca("devinfo", "-l", "--name", kernel.name).stdout == "1 HCA found:\n    mthca0\n"
    listed = softhca("devinfo", "-l", "-d", "mthca0", "--json", "--name", kernel.name).stdout
    assert json.loads(listed) == ["mthca0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-d", "mlx5_0"), "has no device 'mlx5_0': it has mthca0"),
        (("-i", "3"), "has no port 3: it has 1 to 2"),
        (("-i", "0"), "has no port 0: it has 1 to 2"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    softhca: Run, kernel: StartedKernel, arguments: tuple[str, ...], words: str
):
    done = softhca("devinfo", *arguments, "--name", kernel.name)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert words in sentence
    assert done.stdout == ""


def test_a_kernel_without_an_hca_is_one_sentence(softhca: Run):
    with start_kernel(f"dev-{uuid.uuid4().hex[:8]}", settings={"no_hca": True}) as kernel:
        done = softhca("devinfo", "--name", kernel.name)
        assert done.returncode == 1
        (sentence,) = done.stderr.splitlines()
        assert "without an HCA" in sentence
        shown = softhca("show", "device", "--name", kernel.name)
        assert (shown.returncode, shown.stdout) == (
            0,
            f"the kernel {kernel.name!r} has no device\n",
        )
