"""The command line: every setting is an option, unknown ones and bad values are one sentence."""

import pytest

from kernel_proc.command_line import find_ready_fd, parse_command_line
from kernel_proc.settings import KernelSettings, SettingsError, option_of

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
    for setting, default in KernelSettings._field_defaults.items():
        option = option_of(setting)
        value = OTHER_VALUES.get(setting, "70000")
        if setting.startswith("max_") and setting not in OTHER_VALUES:
            value = "900"
        if isinstance(default, bool):
            arguments.append(option.replace("--", "--no-", 1) if default else option)
        else:
            arguments += [option, value]
    settings = parse_command_line(arguments).settings
    defaults = KernelSettings()
    unchanged = [
        name for name in settings._fields if getattr(settings, name) == getattr(defaults, name)
    ]
    assert unchanged == []
    assert (settings.name, settings.seed, settings.max_sessions) == ("other", 70_000, 900)


def test_a_value_stands_behind_its_option_or_in_it_and_the_last_one_holds():
    arguments = ["--seed=1", "--log", "-", "--seed", "-2", "--threaded-dpcs", "--no-threaded-dpcs"]
    settings = parse_command_line(arguments).settings
    assert (settings.seed, settings.log, settings.threaded_dpcs) == (-2, "-", False)


def test_drivers_are_loaded_in_the_order_they_are_named_in():
    arguments = ["--driver", "one.py:entry", "--no-hca", "--driver=two:entry"]
    assert parse_command_line(arguments).settings.driver == ("one.py:entry", "two:entry")


def test_what_a_starter_arranges_is_no_setting():
    options = parse_command_line(["--ready-fd=5", "--owner-fd", "6", "--take-output"])
    assert options == (KernelSettings(), 5, 6, True)


def test_the_help_names_every_option_with_its_default(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse_command_line(["--verifier", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for setting in (*KernelSettings._fields, "ready_fd", "owner_fd", "take_output"):
        assert f"  {option_of(setting)}" in text
    assert "--no-hca" in text
    assert "(default: 256)" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--verif"], "unrecognized arguments: --verif"),
        (["stray"], "unrecognized arguments: stray"),
        (["--max-sessions", "0"], "--max-sessions must lie between 1 and"),
        (["--max-sessions", "many"], "invalid int value: 'many'"),
        (["--max-sessions"], "expected one argument"),
        (["--max-sessions", "--verifier"], "expected one argument"),
        (["--latency-factor=much"], "invalid float value: 'much'"),
        (["--verifier=yes"], "ignored explicit argument 'yes'"),
        (["--take-output", "--", "--verifier"], "unrecognized arguments: --"),
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
