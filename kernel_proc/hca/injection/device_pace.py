"""An HCA that is slow, stands still for a while, or fails altogether.

Standing still it does no round; its control socket is read all the same. While it does, whoever
waits for it waits; nothing is lost.
"""

from kernel_proc.hca.injection.injection import Injection


class InjectedFailure(RuntimeError):
    """What an HCA says that was told to fail."""


class HcaSlow(Injection):
    """After each round in which it did something it does nothing for a time."""

    def pause_ns(self, did_something: bool) -> int:
        """Return that time, if this round is struck."""
        struck = did_something and self.active.strikes()
        return self.active.fault.time_ns if struck else 0


class HcaPaused(Injection):
    """It does nothing from now on until its time is over."""

    def begin(self) -> None:
        """Count it once."""
        self.active.strikes()


class HcaFailed(Injection):
    """A catastrophic error: the device is dead, its process is not."""

    def begin(self) -> None:
        """Fail as from an exception that no rule foresees."""
        self.active.strikes()
        try:
            raise InjectedFailure("it was told to fail")
        except InjectedFailure as error:
            self.device.fail(error)
