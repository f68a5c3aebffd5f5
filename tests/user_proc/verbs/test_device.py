"""Opening a device, and what can be asked of it."""

import pytest

from shared.verb_reasons import VerbReason
from tests.user_proc.verbs.stand_in import INVALID_REQUEST, Refusal, Wire
from user_proc.process import UserProcess
from user_proc.verbs.device import (
    Context,
    QueryDeviceExInput,
    get_device_list,
)
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError


def test_a_context_opens_the_device_and_closes_it_once(process: UserProcess, wire: Wire):
    context = Context(name="mthca0", process=process)
    assert wire.names() == ["open_context"]
    assert (context.name, context.num_comp_vectors) == ("mthca0", 1)
    context.close()
    context.close()
    with pytest.raises(PyverbsUserError, match="the Context is closed"):
        context.query_device()
    assert not process.closed  # it was the program's


def test_contexts_of_one_process_share_its_doorbells(process: UserProcess):
    with (
        Context(name="mthca0", process=process) as one,
        Context(name="mthca0", process=process) as other,
    ):
        assert one.session() is not other.session()
        assert one.session().doorbells is other.session().doorbells


def test_no_name_and_no_such_device(process: UserProcess, wire: Wire):
    with pytest.raises(PyverbsUserError, match=r"^Device name must be provided$"):
        Context(process=process)
    with pytest.raises(PyverbsRDMAError, match=r"^Failed to find device mlx5_0$") as caught:
        Context(name="mlx5_0", process=process)
    assert caught.value.error_code == -1
    wire.answers["open_context"] = lambda request: INVALID_REQUEST
    with pytest.raises(PyverbsRDMAError, match=r"^Failed to find device noop$"):
        Context(name="noop", process=process)


def test_a_device_that_is_dead_is_not_opened(process: UserProcess, wire: Wire):
    wire.answers["open_context"] = lambda request: Refusal(5, VerbReason.DEVICE_FATAL)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to open device mthca0. Errno: 5") as caught:
        Context(name="mthca0", process=process)
    assert caught.value.error_code == 5


def test_keywords_only():
    with pytest.raises(TypeError):
        Context("mthca0")  # type: ignore[misc]  # on purpose
    with pytest.raises(TypeError):
        Context(nme="mthca0")  # type: ignore[call-arg]  # on purpose
    with pytest.raises(TypeError, match="Argument 'process' has incorrect type"):
        Context(name="mthca0", process="default")  # type: ignore[arg-type]  # on purpose


def test_without_a_kernel_one_sentence_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOFTHCA_NAME", "nobody-home")
    for action in (get_device_list, lambda: Context(name="mthca0")):
        with pytest.raises(PyverbsRDMAError, match="softhca kernel start --name nobody-home"):
            action()
    with pytest.raises(PyverbsRDMAError, match="--name another"):
        Context(name="mthca0", kernel="another")


def test_the_list_of_devices(process: UserProcess, wire: Wire):
    (device,) = get_device_list(process=process)
    assert (device.name, device.guid) == (b"mthca0", 0x0002C90300112233)
    assert (device.node_type, device.transport_type, device.index) == (1, 0, 0)
    assert "GUID 0002c90300112233" in str(device)
    wire.answers["open_context"] = lambda request: INVALID_REQUEST
    assert get_device_list(process=process) == []


def test_the_device_is_queried_with_guids_in_network_order(context: Context):
    attr = context.query_device()
    assert attr.fw_version == "5.3.0"
    assert attr.node_guid == int.from_bytes(bytes.fromhex("0002c90300112233"), "little")
    assert "Node guid             : 0002:c903:0011:2233" in str(attr)
    assert (attr.max_qp, attr.max_ee, attr.atomic_caps) == (108, 0, 120)
    extended = context.query_device_ex(QueryDeviceExInput(0))
    assert extended.orig_attr.max_qp == attr.max_qp
    assert (extended.tso_caps.max_tso, extended.odp_caps.general_caps) == (0, 0)
    with pytest.raises(TypeError, match=r"expected pyverbs.device.QueryDeviceExInput, got int"):
        context.query_device_ex(3)  # type: ignore[arg-type]  # on purpose


def test_a_port_is_queried(context: Context):
    attr = context.query_port(1)
    assert (attr.state, attr.lid, attr.port_cap_flags2) == (4, 1, 0)
    assert "Port state              : Active (4)" in str(attr)
    assert context.query_port_speed(1) == 4 * 50
    with pytest.raises(PyverbsRDMAError) as caught:
        context.query_port(3)
    assert str(caught.value) == (
        "Failed to query port 3. Errno: 22, Invalid argument: "
        "there is no port 3: the device has ports 1 to 2"
    )
    with pytest.raises(OverflowError, match="value too large to convert to unsigned char"):
        context.query_port(256)


def test_gids(context: Context):
    assert context.query_gid(1, 0).gid == "fe80:0000:0000:0000:0101:0101:0101:0101"
    assert context.query_gid(1, 1).gid == "0000:" * 7 + "0000"
    assert context.query_gid_type(1, 0) == 0
    entry = context.query_gid_ex(2, 2)
    assert (entry.gid_index, entry.port_num, entry.gid_type) == (2, 2, 0)
    assert entry.gid_str() == "fe80:0000:0000:0000:0303:0303:0303:0303"
    table = context.query_gid_table(4)
    assert [(one.port_num, one.gid_index) for one in table] == [(1, 0), (1, 2), (2, 0), (2, 2)]


@pytest.mark.parametrize(
    ("ask", "text", "code"),
    [
        (lambda c: c.query_gid(1, 9), "Failed to query gid 9 of port 1", -1),
        (lambda c: c.query_gid(1, -1), "Failed to query gid -1 of port 1", -1),
        (
            lambda c: c.query_gid_type(1, 9),
            "Failed to query gid type of port 1 and gid index 9",
            22,
        ),
        (lambda c: c.query_gid_ex(1, 1), "Failed to query gid table of port 1 in index 1", 61),
        (lambda c: c.query_gid_ex(1, 0, 1), "Failed to query gid table of port 1 in index 0", 22),
        (lambda c: c.query_gid_table(3), "Failed to query gid tables of the device", -22),
        (lambda c: c.query_pkey(1, 2), "Failed to query pkey 2 of port 1", -1),
        (lambda c: c.get_pkey_index(1, 7), "Failed to get pkey index of pkey = 7 of port 1", -1),
        (lambda c: c.query_rt_values_ex(3), "Failed to query real time values", 95),
        (
            lambda c: c.query_device_ex(QueryDeviceExInput(1)),
            "Failed to query EX device mthca0",
            22,
        ),
    ],
)
def test_failing_queries(context: Context, ask, text: str, code: int):  # noqa: ANN001
    with pytest.raises(PyverbsRDMAError) as caught:
        ask(context)
    assert str(caught.value).startswith(text)
    assert caught.value.error_code == code
    assert caught.value.reason


def test_partition_keys_are_in_network_order(context: Context):
    assert (context.query_pkey(1, 0), context.query_pkey(1, 1)) == (0xFFFF, 0x0180)
    assert context.get_pkey_index(1, 0x0180) == 1
