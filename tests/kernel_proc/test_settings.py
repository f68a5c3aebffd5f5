"""Settings: every one is an option, unknown ones and bad values are one sentence."""

from dataclasses import fields

import pytest

from kernel_proc.settings import (
    KernelSettings,
    SettingsError,
    find_ready_fd,
    parse_command_line,
)

OTHER_VALUES = {
    "name": "other",
    "log": "file",
    "latency_model": "plausible",
    "latency_factor": "0.5",
    "command_mode": "polling",
    "allocation": "pool",
    "max_qp_rd_atom": "8",
    "kernel_memory_bytes": str(1 << 30),
    "hca_percent_per_process": "20",
}


def test_without_arguments_the_defaults_hold():
    options = parse_command_line([])
    assert options.settings == KernelSettings()
    assert (options.ready_fd, options.owner_fd) == (None, None)


def test_every_setting_is_an_option():
    arguments = []
    for setting in fields(KernelSettings):
        option = "--" + setting.name.replace("_", "-")
        value = OTHER_VALUES.get(setting.name, "70000")
        if setting.name.startswith("max_") and setting.name not in OTHER_VALUES:
            value = "900"
        if isinstance(setting.default, bool):
            arguments.append(option.replace("--", "--no-", 1) if setting.default else option)
        else:
            arguments += [option, value]
    settings = parse_command_line(arguments).settings
    defaults = KernelSettings()
    unchanged = [
        f.name for f in fields(settings) if getattr(settings, f.name) == getattr(defaults, f.name)
    ]
    assert unchanged == []
    assert (settings.name, settings.seed, settings.max_sessions) == ("other", 70_000, 900)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--verif"], "unrecognized arguments: --verif"),
        (["stray"], "unrecognized arguments: stray"),
        (["--max-sessions", "0"], "--max-sessions must lie between 1 and"),
        (["--max-sessions", "many"], "invalid int value: 'many'"),
        (["--max-sessions"], "expected one argument"),
        (["--ready-fd", "-1"], "-1 is no descriptor"),
        (["--command-mode", "poll"], "--command-mode must be event or polling, not 'poll'"),
        (["--latency-model", "slow"], "--latency-model must be none, plausible, prm-ceiling or"),
        (["--allocation", "luck"], "--allocation must be direct, common-buffer, smaller, pages or"),
        (["--max-qp-rd-atom", "6"], "--max-qp-rd-atom is a power of two, not 6"),
        (["--latency-factor", "-1"], "--latency-factor must lie between 0.0 and 1000.0, not -1.0"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: list[str], words: str):
    with pytest.raises(SettingsError) as caught:
        parse_command_line(arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--ready-fd", "7", "--nonsense"], 7),
        (["--nonsense", "--ready-fd=8"], 8),
        (["--ready-fd", "x"], None),
        (["--ready-fd"], None),
        ([], None),
    ],
)
def test_the_starters_descriptor_is_found_in_a_wrong_command_line(
    arguments: list[str], found: int | None
):
    assert find_ready_fd(arguments) == found
