"""Settings: every one is an option, unknown ones and bad values are one sentence."""

from dataclasses import fields

import pytest

from kernel_proc.settings import (
    KernelSettings,
    SettingsError,
    find_ready_fd,
    parse_command_line,
)


def test_without_arguments_the_defaults_hold():
    options = parse_command_line([])
    assert options.settings == KernelSettings()
    assert (options.ready_fd, options.owner_fd) == (None, None)


def test_every_setting_is_an_option():
    arguments = []
    for setting in fields(KernelSettings):
        option = "--" + setting.name.replace("_", "-")
        value = {"name": "other", "log": "file"}.get(setting.name, "70000")
        if setting.name.startswith("max_"):
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
        (["--max-sessions", "0"], "max_sessions must lie between 1 and"),
        (["--max-sessions", "many"], "invalid int value: 'many'"),
        (["--max-sessions"], "expected one argument"),
        (["--ready-fd", "-1"], "-1 is no descriptor"),
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
