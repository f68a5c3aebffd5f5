"""The house itself: where the packages lie, who imports whom, how files are called."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import grimp
import pytest
from importlinter.cli import lint_imports

import kernel_proc
import shared
import user_proc

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = ROOT / "pyproject.toml"
PACKAGES = {"kernel_proc": kernel_proc, "user_proc": user_proc, "shared": shared}
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# --- the three packages are ours -----------------------------------------------------------------


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_a_package_lies_in_the_folder_of_its_name_in_this_repository(
    name: str, package: ModuleType
):
    assert Path(package.__file__ or "").resolve() == ROOT / name / "__init__.py"


def test_every_room_is_a_regular_package():
    folders = {path.parent for path in SOURCES}
    assert [relative(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.processes
def test_the_packages_are_found_from_an_empty_folder(tmp_path: Path):
    code = f"import {', '.join(PACKAGES)}; print(kernel_proc.__file__)"
    found = subprocess.check_output([sys.executable, "-P", "-c", code], cwd=tmp_path, text=True)
    assert Path(found.strip()).resolve() == ROOT / "kernel_proc" / "__init__.py"


@pytest.fixture(params=["shared/__init__.py", "shared.py"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Another `shared`, as a package or as a module."""
    stranger = tmp_path / str(request.param)
    stranger.parent.mkdir(exist_ok=True)
    stranger.touch()
    return stranger


def run_with_foreign(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.processes
@pytest.mark.parametrize("name", ["kernel_proc", "user_proc"])
def test_a_program_refuses_a_foreign_shared_in_one_sentence(
    name: str, foreign: Path, tmp_path: Path
):
    done = run_with_foreign(tmp_path, "-m", name)
    assert (done.returncode, done.stdout) == (1, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"{name} needs the package 'shared' of {ROOT}/shared/__init__.py")
    assert f"but {foreign} comes first" in sentence
    assert sentence.endswith("remove it from PYTHONPATH or from the environment")


@pytest.mark.processes
@pytest.mark.parametrize("name", ["kernel_proc", "user_proc"])
def test_an_import_refuses_a_foreign_shared_by_import_error(
    name: str, foreign: Path, tmp_path: Path
):
    done = run_with_foreign(tmp_path, "-c", f"import {name}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {name} needs the package 'shared' of")
    assert str(foreign) in last


# --- who imports whom ----------------------------------------------------------------------------


def test_the_import_rules_are_kept(capsys: pytest.CaptureFixture[str]):
    assert lint_imports(str(CONFIGURATION), no_cache=True, no_logo=True) == 0, (
        capsys.readouterr().out
    )


def test_the_layers_hold_for_imports_in_annotations_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    runtime_only = "exclude_type_checking_imports = true"
    text = text_of(CONFIGURATION)
    assert runtime_only in text
    strict = tmp_path / "strict.toml"
    strict.write_text(text.replace(runtime_only, ""), encoding="utf-8")
    layers = ("borders", "kernel", "user")
    status = lint_imports(str(strict), limit_to_contracts=layers, no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


def contracts() -> list[dict[str, str | list[str]]]:
    rules: list[dict[str, str | list[str]]]
    rules = tomllib.loads(text_of(CONFIGURATION))["tool"]["importlinter"]["contracts"]
    return rules


@pytest.fixture
def empty_rooms(tmp_path: Path) -> Path:
    """A house under our import rules in which nobody imports anybody."""
    (tmp_path / "pyproject.toml").write_text(text_of(CONFIGURATION), encoding="utf-8")
    rooms = {*PACKAGES, "shared/first", "shared/second"}
    for contract in contracts():
        for container in contract.get("containers", ()):
            for layer in contract["layers"]:
                rooms |= {f"{container}/{room.strip()}" for room in layer.split("|")}
    for room in rooms:
        (tmp_path / room).mkdir(parents=True, exist_ok=True)
        (tmp_path / room / "__init__.py").touch()
    return tmp_path


def judge_rooms(house: Path) -> tuple[int, str]:
    code = "from importlinter import cli; raise SystemExit(cli.lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=house,
        env=os.environ | {"PYTHONPATH": str(house), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.processes
def test_the_import_rules_accept_rooms_that_import_nobody(empty_rooms: Path):
    status, said = judge_rooms(empty_rooms)
    assert status == 0, said


@pytest.mark.processes
def test_each_import_rule_finds_what_is_against_it(empty_rooms: Path):
    offences = {
        "kernel_proc/devices": "import user_proc.errors",
        "kernel_proc/memory": "import kernel_proc.server",
        "kernel_proc/settings": "import psutil",
        "kernel_proc/hca": "import kernel_proc.memory",
        "kernel_proc/hca_abi": "import kernel_proc.settings",
        "user_proc/io": "import user_proc.memory",
        "user_proc/process": "import rich",
        "user_proc/bench": "import typer",
        "shared/first": "import shared.second",
        "shared/second": "import shared.first",
    }
    for room, line in offences.items():
        (empty_rooms / room / "__init__.py").write_text(line)
    status, said = judge_rooms(empty_rooms)
    assert status == 1
    kept = [rule["name"] for rule in contracts() if f"{rule['name']} BROKEN" not in said]
    assert kept == [], said


@pytest.mark.processes
@pytest.mark.parametrize("package", ["kernel_proc", "user_proc"])
def test_a_new_room_must_be_given_its_layer(empty_rooms: Path, package: str):
    (empty_rooms / package / "annexe.py").touch()
    status, said = judge_rooms(empty_rooms)
    assert status == 1
    assert "annexe" in said


def test_each_module_of_shared_is_needed_by_two_of_the_three_kinds_of_process():
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    modules = graph.find_children("shared")
    needed = {
        "user": graph.find_upstream_modules("user_proc", as_package=True),
        "HCA": graph.find_upstream_modules("kernel_proc.hca", as_package=True),
    }
    of_hca = graph.find_descendants("kernel_proc.hca") | {"kernel_proc.hca"}
    graph.squash_module("kernel_proc.hca")
    graph.remove_module("kernel_proc.hca")
    assert not of_hca & graph.modules
    needed["kernel"] = graph.find_upstream_modules("kernel_proc", as_package=True)
    sides = {name: [side for side in needed if name in needed[side]] for name in modules}
    assert {name: where for name, where in sides.items() if len(where) < 2} == {}


def imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def imports_of(paths: list[Path]) -> set[tuple[str, str]]:
    return {
        (relative(path), name.partition(".")[0]) for path in paths for name in imported_names(path)
    }


def test_shared_imports_the_standard_library_and_msgpack_only():
    allowed = sys.stdlib_module_names | {"shared", "msgpack"}
    found = imports_of([path for path in SOURCES if path.is_relative_to(ROOT / "shared")])
    assert found
    assert {(path, name) for path, name in found if name not in allowed} == set()


def test_nobody_imports_what_makes_code_of_bytes_or_needs_a_tracker():
    forbidden = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "multiprocessing"}
    assert {(path, name) for path, name in imports_of(SOURCES) if name in forbidden} == set()
    calls = re.compile(r"\b(?:send|recv)_(?:pyobj|serialized)\b|(?<![\w.])(?:eval|exec)\(")
    assert lines_with(calls, SOURCES) == []


# --- names and words -----------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_basenames_are_unique_within_a_package_and_not_of_the_standard_library(package: str):
    names = [path.stem for path in (ROOT / package).rglob("*.py") if path.stem[:2] != "__"]
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert sorted(set(names) & sys.stdlib_module_names) == []


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def files_of_the_project() -> list[Path]:
    folders = [*PACKAGES, "scripts", "docs", "tests", ".ci"]
    inner = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    files = [*inner, *ROOT.glob("*.md"), CONFIGURATION]
    return [path for path in files if path.is_file() and "__pycache__" not in path.parts]


# The brackets keep the lists from finding themselves.
PROMISES = r"TOD[O]|FIXM[E]|NotImplemented[E]|\bfor no[w]\b|placeholde[r]|in a rea[l] |simplifie[d]"
OTHER_PLACES = r"/wor[k]/|/hom[e]/\w|\.\./share[d]\b|\b[Ii]ssue #?\d"


@pytest.mark.parametrize("words", [PROMISES, OTHER_PLACES])
def test_no_file_promises_what_is_missing_or_names_a_place_outside(words: str):
    assert lines_with(re.compile(words), files_of_the_project()) == []


# --- the pages -----------------------------------------------------------------------------------


def test_the_index_names_each_page():
    index = text_of(ROOT / "docs" / "README.md")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(page for page in pages if f"({page})" not in index) == []


def test_every_relative_link_leads_somewhere():
    dead = [
        (relative(page), target)
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text_of(page))
        if not (page.parent / target).exists()
    ]
    assert dead == []
