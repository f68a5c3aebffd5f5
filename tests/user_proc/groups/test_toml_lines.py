"""Where the keys of a TOML text stand."""

import tomllib

from user_proc.groups.toml_lines import key_lines, line_of

TEXT = '''# a comment
time_limit = 5
[kernel]
"verifier" = true   # = here, too
text = """
[group]
not = "a key"
"""
[[group]]
name = "a"
arguments = [
    "x = 1",
    "]",
    "y",
]
success = { exit_codes = [0] }
[group.environment]
KEY = "value"
[[group]]
name = "b"
[group.success.reported]
ops = 1
[ barriers ]
go = ["a"]
'''


def test_each_key_has_its_line():
    tomllib.loads(TEXT)  # it is what it claims to be
    lines = key_lines(TEXT)
    assert {path: lines[path] for path in sorted(lines)} == {
        "barriers": 23,
        "barriers.go": 24,
        "group[0]": 9,
        "group[0].arguments": 11,
        "group[0].environment": 17,
        "group[0].environment.KEY": 18,
        "group[0].name": 10,
        "group[0].success": 16,
        "group[1]": 19,
        "group[1].name": 20,
        "group[1].success.reported": 21,
        "group[1].success.reported.ops": 22,
        "kernel": 3,
        "kernel.text": 5,
        "kernel.verifier": 4,
        "time_limit": 2,
    }


def test_what_has_no_line_has_that_of_the_table_around_it():
    lines = key_lines(TEXT)
    assert line_of("group[0].arguments[1]", lines) == 11
    assert line_of("group[1].count", lines) == 19
    assert line_of("group[0].success.exit_codes", lines) == 16
    assert line_of("nothing.of.it", lines) is None
    assert line_of("", lines) is None
