"""Loading and unloading drivers: where code is found, what is wrong with it, what is left."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.io_manager.driver_image import DriverLoadFailed
from kernel_proc.io_manager.wdm import delay_execution
from kernel_proc.machine import Machine
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    TIMER_OR_DPC_INVALID,
    BugCheck,
)
from kernel_proc.scheduling.kthread import create_user_thread
from kernel_proc.settings import KernelSettings

RIGHT = """
from kernel_proc.io_manager import wdm

def driver_entry(driver):
    device = wdm.create_device(driver, NAME, 0x8010)
    driver.driver_unload = lambda driver: EVENTS.append(NAME) or wdm.delete_device(device)
    EVENTS.append("loaded " + NAME)
    return 0
"""


class Drivers:
    """Driver files, and machines that load them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: list[str] = []

    def file(self, code: str, name: str = "one") -> str:
        path = self.folder / f"{name}.py"
        path.write_text(code)
        return str(path)

    def right(self, name: str) -> str:
        """A driver that makes a device of its name, and tells when it is loaded and unloaded."""
        head = f"import sys\nNAME = {name!r}\nEVENTS = sys.modules[{__name__!r}].events\n"
        return self.file(head + RIGHT, name)

    def machine(self, *specifications: str, verifier: bool = False) -> Machine:
        settings = KernelSettings(verifier=verifier, driver=specifications)
        log: Any = self
        return Machine(settings, in_process=True, log=log)

    def line(self, text: str) -> None:
        self.log.append(text)

    def refused(self, *specifications: str) -> str:
        """Why a machine does not start: one sentence."""
        with pytest.raises(DriverLoadFailed) as caught:
            self.machine(*specifications)
        text = str(caught.value)
        assert "\n" not in text
        assert text.startswith(f"the driver {specifications[-1]!r} was not loaded: ")
        return text


events: list[str] = []


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    before = set(sys.modules)
    events.clear()
    yield Drivers(tmp_path)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def stop(machine: Machine) -> None:
    machine.request_stop("test")
    machine.processor.run_until(lambda: machine.processor.dispatcher.stopping)


# Finding and loading


def test_a_file_is_loaded_and_unloaded(drivers: Drivers):
    path = drivers.right("first")
    machine = drivers.machine(f"{path}:driver_entry", verifier=True)
    assert machine.io.devices["first"].driver_object.name == "first"
    (shown,) = machine.inspect()["drivers"]
    assert shown == {
        "name": "first",
        "specification": f"{path}:driver_entry",
        "origin": path,
        "devices": ["first"],
        "has_unload": True,
    }
    stop(machine)
    assert events == ["loaded first", "first"]
    assert "first" not in machine.io.devices
    assert machine.stopped_clean
    assert drivers.log == [
        f"driver 'first' loaded from {path}, with device 'first'",
        "stopping: test",
        "driver 'first' unloaded",
    ]


def test_a_module_of_the_path_is_loaded(drivers: Drivers, monkeypatch: pytest.MonkeyPatch):
    drivers.right("findable")
    monkeypatch.syspath_prepend(str(drivers.folder))
    machine = drivers.machine("findable:driver_entry")
    assert "findable" in machine.io.devices


def test_drivers_are_unloaded_in_the_opposite_order(drivers: Drivers):
    machine = drivers.machine(*[f"{drivers.right(name)}:driver_entry" for name in "abc"])
    stop(machine)
    assert events == ["loaded a", "loaded b", "loaded c", "c", "b", "a"]


def test_a_file_named_as_a_library_module_hides_nothing(drivers: Drivers):
    machine = drivers.machine(f"{drivers.right('mailbox')}:driver_entry")
    assert "mailbox" in machine.io.devices
    import mailbox

    assert mailbox.__file__ is not None
    assert str(drivers.folder) not in mailbox.__file__


def test_two_files_of_one_name_are_two_drivers(drivers: Drivers):
    inner = drivers.folder / "inner"
    inner.mkdir()
    first = drivers.right("same")
    second = inner / "same.py"
    second.write_text(Path(first).read_text().replace("NAME = 'same'", "NAME = 'other'"))
    machine = drivers.machine(f"{first}:driver_entry", f"{second}:driver_entry")
    names = [shown["name"] for shown in machine.drivers.inspect()]
    assert names == ["same", f"{second}:driver_entry"]
    assert {"same", "other"} <= set(machine.io.devices)


def test_two_entries_of_one_file_share_its_module(drivers: Drivers):
    path = drivers.file(
        "seen = []\n"
        "def one(driver):\n    seen.append(1)\n    return 0\n"
        "def two(driver):\n    return 0 if seen == [1] else 0xC0000001\n"
    )
    drivers.machine(f"{path}:one", f"{path}:two")


def test_an_entry_may_wait(drivers: Drivers):
    path = drivers.file(
        "from kernel_proc.io_manager.wdm import delay_execution\n"
        "def driver_entry(driver):\n"
        "    delay_execution(driver.processor, 1_000_000_000)\n"
        "    return 0x102\n"  # informational: a success
    )
    machine = drivers.machine(f"{path}:driver_entry")
    assert machine.processor.clock.now_ns() >= 1_000_000_000


# What is wrong, in one sentence with the cure


@pytest.mark.parametrize("specification", ["driver", "a.py", ":entry", "a.py:", "a.py:not a name"])
def test_a_specification_without_an_entry(drivers: Drivers, specification: str):
    assert "name it MODULE:ENTRY or FILE.py:ENTRY" in drivers.refused(specification)


def test_no_such_module(drivers: Drivers):
    text = drivers.refused("nowhere.to_be.found:driver_entry")
    assert "the kernel finds no module 'nowhere': put its folder into PYTHONPATH" in text


@pytest.mark.parametrize("place", ["missing.py", "./missing", "."])
def test_no_such_file(drivers: Drivers, place: str):
    assert "there is no file" in drivers.refused(f"{drivers.folder}/{place}:driver_entry")


def test_a_file_that_is_no_python(drivers: Drivers):
    path = drivers.folder / "driver.sys"
    path.touch()
    assert "end its name in .py" in drivers.refused(f"{path}:driver_entry")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("1 / 0", "importing it raised ZeroDivisionError: division by zero ("),
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all' ("),
        ("def broken(:", "SyntaxError: invalid syntax ("),
        ("raise SystemExit(3)", "importing it raised SystemExit: 3 ("),
        ("raise ValueError('two\\nlines')", "importing it raised ValueError: two lines ("),
    ],
)
def test_a_failing_import(drivers: Drivers, code: str, words: str):
    path = drivers.file(f"\n{code}\n")
    text = drivers.refused(f"{path}:driver_entry")
    assert words + f"{path}, line 2); correct it there" in text
    assert "driver_one" not in sys.modules


def test_no_such_entry(drivers: Drivers):
    path = drivers.file("from os import getpid\ndef start(driver): ...\nvalue = 1\n")
    text = drivers.refused(f"{path}:driver_entry")
    assert "'driver_one' has no 'driver_entry': define 'def driver_entry(driver)' there" in text
    assert text.endswith("or name one of its functions (start)")
    assert "has a int and no function 'value'" in drivers.refused(f"{path}:value")


@pytest.mark.parametrize("signature", ["()", "(driver, registry_path)", "(*, driver)"])
def test_a_wrong_signature(drivers: Drivers, signature: str):
    path = drivers.file(f"def driver_entry{signature}: return 0\n")
    text = drivers.refused(f"{path}:driver_entry")
    assert f"takes {signature}, and is called with the driver object alone" in text


@pytest.mark.parametrize("signature", ["(driver, more=1)", "(*all)"])
def test_more_than_enough_is_fine(drivers: Drivers, signature: str):
    drivers.machine(f"{drivers.file(f'def driver_entry{signature}: return 0')}:driver_entry")


def test_an_entry_that_raises(drivers: Drivers):
    path = drivers.file(
        "from kernel_proc.io_manager import wdm\n"
        "def driver_entry(driver):\n"
        "    wdm.create_device(driver, 'noop', 1)\n"
    )
    text = drivers.refused(f"{path}:driver_entry")
    assert "its entry raised RaisedStatus: STATUS_OBJECT_NAME_COLLISION" in text
    assert f"({path}, line 3); correct it there" in text


def test_an_entry_that_calls_sys_exit(drivers: Drivers):
    path = drivers.file("import sys\ndef driver_entry(driver):\n    sys.exit(0)\n")
    assert "its entry raised SystemExit: 0 (" in drivers.refused(f"{path}:driver_entry")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("None", "its entry returned None and no status; end it in 'return STATUS_SUCCESS'"),
        ("True", "its entry returned True and no status"),
        ("0xC000000E", "its entry returned STATUS_NO_SUCH_DEVICE, by which a driver refuses"),
        ("0x80000011", "its entry returned STATUS_DEVICE_BUSY"),
    ],
)
def test_an_entry_that_returns_no_success(drivers: Drivers, value: str, words: str):
    path = drivers.file(f"def driver_entry(driver): return {value}\n")
    assert words in drivers.refused(f"{path}:driver_entry")


def test_an_entry_that_does_not_return(drivers: Drivers):
    path = drivers.file(
        "from kernel_proc.io_manager import wdm\n"
        "def driver_entry(driver):\n"
        "    return wdm.Event(driver.processor, notification=True).wait()\n"
    )
    text = drivers.refused(f"{path}:driver_entry")
    assert "its entry has not returned within 5 s (thread" in text
    assert "waiting for Event(state 0)" in text


def test_a_driver_named_twice(drivers: Drivers):
    path = drivers.right("twice")
    assert "named twice" in drivers.refused(*[f"{path}:driver_entry"] * 2)


def test_those_before_a_failing_one_are_unloaded(drivers: Drivers):
    good = [f"{drivers.right(name)}:driver_entry" for name in "ab"]
    bad = drivers.file("def driver_entry(driver): return 0xC0000001", "bad")
    drivers.refused(*good, f"{bad}:driver_entry")
    assert events == ["loaded a", "loaded b", "b", "a"]


def test_a_bug_check_of_an_entry_is_one(drivers: Drivers):
    path = drivers.file(
        "from kernel_proc.io_manager import wdm\n"
        "def driver_entry(driver):\n"
        "    driver.processor.raise_irql(2)\n"
        "    return wdm.Event(driver.processor, notification=True).wait()\n"
    )
    with pytest.raises(BugCheck) as caught:
        drivers.machine(f"{path}:driver_entry")
    assert "driver_entry (one.py:4)" in caught.value.text()


# Unloading


def unloading(drivers: Drivers, body: str, *, verifier: bool = True) -> Machine:
    """A machine whose driver leaves something behind when it is unloaded."""
    path = drivers.file(
        "from kernel_proc.io_manager import wdm\n"
        "def driver_entry(driver):\n"
        "    driver.driver_unload = lambda driver: None\n"
        "    processor = driver.processor\n"
        f"    {body}\n"
        "    return 0\n"
    )
    return drivers.machine(f"{path}:driver_entry", verifier=verifier)


def test_c4_62_pool_left_at_unload(drivers: Drivers):
    machine = unloading(drivers, "driver.io.pool.allocate(64, 'Left')")
    with pytest.raises(BugCheck) as caught:
        stop(machine)
    assert caught.value.code == DRIVER_VERIFIER_DETECTED_VIOLATION
    assert (caught.value.parameters[0], caught.value.parameters[3]) == (0x62, 1)
    assert "driver 'one' leaves 1 blocks of pool, 64 bytes, tags 'Left'" in caught.value.headline()


def test_free_mode_says_nothing_of_pool(drivers: Drivers):
    stop(unloading(drivers, "driver.io.pool.allocate(64, 'Left')", verifier=False))
    assert drivers.log[-1] == "driver 'one' unloaded"


@pytest.mark.parametrize("verifier", [False, True])
@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("timer = wdm.Timer(processor)", None),
        ("wdm.Timer(processor).set(10**15, dpc=wdm.Dpc(processor, lambda *_: None))", "set timer"),
    ],
)
def test_c7_a_timer_left_at_unload(drivers: Drivers, verifier: bool, body: str, what: Any):
    machine = unloading(drivers, body, verifier=verifier)
    if what is None:
        stop(machine)
        return
    with pytest.raises(BugCheck) as caught:
        stop(machine)
    assert caught.value.code == TIMER_OR_DPC_INVALID
    assert f"driver 'one' unloads and leaves a {what}" in caught.value.headline()


def test_c7_a_queued_dpc_left_at_unload(drivers: Drivers):
    path = drivers.file(
        "from kernel_proc.io_manager import wdm\n"
        "def driver_entry(driver):\n"
        "    def unload(driver):\n"
        "        driver.processor.raise_irql(2)\n"
        "        wdm.Dpc(driver.processor, routine).insert()\n"
        "    driver.driver_unload = unload\n"
        "    return 0\n"
        "def routine(*_): ...\n"
    )
    machine = drivers.machine(f"{path}:driver_entry")
    with pytest.raises(BugCheck) as caught:
        stop(machine)
    assert caught.value.code == TIMER_OR_DPC_INVALID
    assert "leaves a queued DPC" in caught.value.headline()


@pytest.mark.parametrize("verifier", [False, True])
def test_a_device_left_at_unload_is_named_and_deleted(drivers: Drivers, verifier: bool):
    machine = unloading(drivers, "wdm.create_device(driver, 'left', 1)", verifier=verifier)
    stop(machine)
    assert "driver 'one' left device 'left' at unload; it is deleted" in drivers.log
    assert "left" not in machine.io.devices


def test_a_driver_without_unload_routine_stays(drivers: Drivers):
    path = drivers.file("def driver_entry(driver): return 0\n")
    machine = drivers.machine(f"{path}:driver_entry", verifier=True)
    stop(machine)
    assert drivers.log[-1] == "driver 'one' has no unload routine and stays to the end"
    assert machine.stopped_clean


def test_an_unload_routine_that_does_not_return(drivers: Drivers):
    path = drivers.file(
        "from kernel_proc.io_manager import wdm\n"
        "def driver_entry(driver):\n"
        "    event = wdm.Event(driver.processor, notification=True)\n"
        "    driver.driver_unload = lambda driver: event.wait()\n"
        "    return 0\n"
    )
    machine = drivers.machine(f"{path}:driver_entry")
    stop(machine)
    assert not machine.stopped_clean
    assert "driver 'one' has not unloaded in time: thread" in drivers.log[-1]


def test_an_unload_routine_that_raises_is_a_bug_check(drivers: Drivers):
    path = drivers.file(
        "def driver_entry(driver):\n    driver.driver_unload = lambda driver: 1 / 0\n    return 0\n"
    )
    machine = drivers.machine(f"{path}:driver_entry")
    with pytest.raises(BugCheck) as caught:
        stop(machine)
    assert "ZeroDivisionError left the unload routine of driver 'one'" in caught.value.headline()


def test_drivers_stay_when_sessions_could_not_be_run_down(drivers: Drivers):
    machine = drivers.machine(f"{drivers.right('kept')}:driver_entry")
    door = machine.connect_in_process()
    thread = create_user_thread(machine.processor, door.session.process, "stuck")
    thread.enter_kernel(delay_execution, machine.processor, 10**12)
    stop(machine)
    assert not machine.stopped_clean
    assert events == ["loaded kept"]


def test_a_driver_cannot_end_the_kernel_by_sys_exit(drivers: Drivers):
    path = drivers.file(
        "import sys\n"
        "from kernel_proc.io_manager import wdm\n"
        "def driver_entry(driver):\n"
        "    wdm.create_system_thread(driver.processor, lambda: wdm.delay_execution("
        "driver.processor, 10**9) or sys.exit(0))\n"
        "    return 0\n"
    )
    machine = drivers.machine(f"{path}:driver_entry")
    with pytest.raises(BugCheck) as caught:
        machine.run()
    assert caught.value.name == "KMODE_EXCEPTION_NOT_HANDLED"
    assert "SystemExit left" in caught.value.headline()
