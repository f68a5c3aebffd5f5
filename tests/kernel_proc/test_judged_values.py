"""Settings are judged however they are made."""

from collections.abc import Callable

import pytest

from kernel_proc.hca_abi.device_settings import HcaSettings, HcaSettingsError
from kernel_proc.settings import KernelSettings, SettingsError

WAYS: dict[str, Callable[[], object]] = {
    "by name": lambda: KernelSettings(max_sessions=0),
    "by place": lambda: KernelSettings("a b"),
    "from values": lambda: KernelSettings._make((*KernelSettings()[:-1], 0)),
    "from others": lambda: KernelSettings()._replace(max_sessions=0),
    "an HCA's": lambda: HcaSettings(ports=3),
    "an HCA's from others": lambda: HcaSettings()._replace(ports=3),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_used_is_refused_however_it_is_made(way: str):
    with pytest.raises((SettingsError, HcaSettingsError)):
        WAYS[way]()


def test_what_can_be_used_is_as_told_and_of_its_kind():
    settings = KernelSettings("one", seed=7)._replace(hca=False)
    assert isinstance(settings, KernelSettings)
    assert (settings.name, settings.seed, settings.hca) == ("one", 7, False)
    assert KernelSettings._make(settings) == settings
    assert HcaSettings(ports=1)._replace(ports=2) == HcaSettings()
