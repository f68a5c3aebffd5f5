"""Loads drivers by calling their entries, and unloads them in the opposite order.

A driver whose entry does not succeed is not loaded, nor is anything after it; those before it are
unloaded again. At unload the driver may leave no timer behind (0xC7), under the verifier no pool
(0xC4/0x62); devices it leaves are deleted, and the log names them.

Rules: PASSIVE_LEVEL; entries and unload routines run in system threads of their own, since they
may wait, and are given up when they wait too long.
Spec: WDK, Writing a DriverEntry Routine; Writing an Unload Routine. NT: IopLoadDriver.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.io_manager.driver_image import (
    DriverImage,
    DriverLoadFailed,
    describe_error,
    import_driver,
)
from kernel_proc.io_manager.driver_object import DriverObject, delete_device
from kernel_proc.scheduling.kthread import create_system_thread
from kernel_proc.scheduling.timer_check import check_no_timer
from shared.nt_status import STATUS_SUCCESS, nt_success, status_name

if TYPE_CHECKING:
    from kernel_proc.io_manager.namespace import IoManager

ENTRY_LIMIT_NS: Final = 5_000_000_000


class DriverLoader:
    """The drivers of one machine that were named when it started."""

    def __init__(self, io: "IoManager", log: Callable[[str], object]) -> None:
        self._io = io
        self._log = log
        self.loaded: list[tuple[DriverImage, DriverObject]] = []

    def load_all(self, specifications: Sequence[str]) -> None:
        """Load drivers in order, or none of them; runs the processor meanwhile."""
        if specifications:
            self._io.processor.run_thread(self._load_all, specifications)

    def _load_all(self, specifications: Sequence[str]) -> None:
        try:
            for specification in specifications:
                self._load(specification)
        except DriverLoadFailed:
            self.unload_all(ENTRY_LIMIT_NS)
            raise

    def _load(self, specification: str) -> None:
        if any(image.specification == specification for image, _ in self.loaded):
            raise DriverLoadFailed(specification, "it is named twice; name it once")
        image = import_driver(specification)
        names = {driver.name for _, driver in self.loaded}
        name = specification if image.name in names else image.name
        driver = DriverObject(self._io.processor, name)
        self._enter(image, driver)
        self.loaded.append((image, driver))
        devices = ", ".join(str(device) for device in driver.devices) or "no device"
        self._log(f"{driver} loaded from {image.origin}, with {devices}")

    def _enter(self, image: DriverImage, driver: DriverObject) -> None:
        outcome: list[Any] = []

        def enter() -> None:
            try:
                outcome.append(image.entry(driver))
            except (Exception, SystemExit) as error:
                outcome.append(error)

        thread = create_system_thread(self._io.processor, enter, name=f"entry of {driver}")
        if thread.wait(ENTRY_LIMIT_NS) != STATUS_SUCCESS:
            raise DriverLoadFailed(
                image.specification,
                f"its entry has not returned within {ENTRY_LIMIT_NS // 1_000_000_000} s "
                f"({thread.describe()}); let it start a system thread for what takes long",
            )
        _judge(image, outcome[0])

    def unload_all(self, limit_ns: int) -> bool:
        """Unload every driver, the last one first; False if one did not return in time.

        Called by a system thread; no file of any driver is open any more.
        """
        in_time = True
        while self.loaded:
            image, driver = self.loaded.pop()
            if driver.driver_unload is None:
                self._log(f"{driver} has no unload routine and stays to the end")
                continue
            thread = create_system_thread(
                self._io.processor, self._unload, image, driver, name=f"unload of {driver}"
            )
            if thread.wait(limit_ns) != STATUS_SUCCESS:
                self._log(f"{driver} has not unloaded in time: {thread.describe()}")
                in_time = False
        return in_time

    def _unload(self, image: DriverImage, driver: DriverObject) -> None:
        processor = self._io.processor
        routine = driver.driver_unload
        assert routine is not None
        try:
            routine(driver)
        except (Exception, SystemExit) as error:
            processor.unhandled_exception(error, f"the unload routine of {driver}")
        check_no_timer(processor, image.module, str(driver))
        self._io.pool.require_freed(image.module, str(driver))
        for device in list(driver.devices):
            self._log(f"{driver} left {device} at unload; it is deleted")
            delete_device(device)
        self._log(f"{driver} unloaded")

    def inspect(self) -> list[dict[str, Any]]:
        """Return each driver with its code and devices."""
        return [
            {
                "name": driver.name,
                "specification": image.specification,
                "origin": image.origin,
                "devices": [device.name for device in driver.devices],
                "has_unload": driver.driver_unload is not None,
            }
            for image, driver in self.loaded
        ]


def _judge(image: DriverImage, outcome: Any) -> None:
    if isinstance(outcome, BaseException):
        what = describe_error(outcome, image.origin)
        raise DriverLoadFailed(
            image.specification, f"its entry raised {what}; correct it there"
        ) from outcome
    if not isinstance(outcome, int) or isinstance(outcome, bool):
        raise DriverLoadFailed(
            image.specification,
            f"its entry returned {outcome!r} and no status; end it in 'return STATUS_SUCCESS'",
        )
    if not nt_success(outcome):
        raise DriverLoadFailed(
            image.specification,
            f"its entry returned {status_name(outcome)}, by which a driver refuses to be loaded; "
            "the reason is in its code",
        )
