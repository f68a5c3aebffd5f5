"""A copy of the project's set-up in a folder of its own, with a Python that only writes down."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOLS = ("bash", "cat", "dirname", "env", "find", "flock", "mkdir", "mv", "readlink", "rm")
TOOLS += ("sha256sum", "stat", "uname")


class ProjectCopy:
    """The scripts in `root`, run with a PATH that holds the fake Python and the tools alone."""

    def __init__(self, base: Path) -> None:
        """Be the copy that lies in this folder."""
        self.base = base
        self.root = base / "a clone"
        self.fake = base / "fake"
        self.bin = base / "bin"
        self.environment = {
            "PATH": str(self.bin),
            "FAKE": str(self.fake),
            "REAL_PYTHON": sys.executable,
        }

    def make(self, repository: Path) -> None:
        """Make it, without an environment."""
        for folder in (self.root, self.fake, self.bin, self.base / "elsewhere"):
            folder.mkdir(parents=True)
        shutil.copytree(repository / "scripts", self.root / "scripts")
        shutil.copytree(repository / ".ci", self.root / ".ci")
        shutil.copy(repository / "pyproject.toml", self.root)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        self.add_python("python3")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def stamp(self) -> str:
        return (self.venv / "softhca.stamp").read_text()

    @property
    def log(self) -> list[str]:
        """What the fake Python was asked, since the start or the last `forget`."""
        log = self.fake / "log"
        return log.read_text().splitlines() if log.exists() else []

    def forget(self) -> None:
        (self.fake / "log").unlink(missing_ok=True)

    def add_python(self, name: str, version: str | None = None) -> None:
        shutil.copy(Path(__file__).with_name("fake_python"), self.bin / name)
        if version is not None:
            (self.fake / f"{name}-version").write_text(version)

    def add_tool(self, name: str, body: str) -> None:
        tool = self.bin / name
        tool.unlink(missing_ok=True)
        tool.write_text(f"#!/bin/bash\n{body}\n")
        tool.chmod(0o755)

    def switch(self, name: str, text: str = "") -> None:
        (self.fake / name).write_text(text)

    def switch_off(self, name: str) -> None:
        (self.fake / name).unlink()

    def have_wait(self, name: str) -> None:
        """Have pip or a check wait at a FIFO; `wait_for` waits for it to come there."""
        for fifo in (f"{name}-waits", f"{name}-started"):
            os.mkfifo(self.fake / fifo)

    def wait_for(self, name: str) -> str:
        return (self.fake / f"{name}-started").read_text().strip()

    def let_go(self, name: str) -> None:
        (self.fake / f"{name}-waits").write_text("go on\n")

    def change_project(self) -> None:
        with (self.root / "pyproject.toml").open("a") as file:
            file.write("# changed\n")

    def start(
        self,
        *arguments: str,
        script: str = "scripts/softhca",
        user: int | None = None,
        own_group: bool = False,
        **more: str,
    ) -> "subprocess.Popen[str]":
        """Start a script as `user`, with `more` variables in its environment."""
        return subprocess.Popen(
            [self.root / script, *arguments],
            cwd=self.base / "elsewhere",
            env=self.environment | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=user,
            process_group=0 if own_group else None,
        )

    def run(
        self, *arguments: str, script: str = "scripts/softhca", user: int | None = None, **more: str
    ) -> "subprocess.CompletedProcess[str]":
        with self.start(*arguments, script=script, user=user, **more) as process:
            out, errors = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


class Kept:
    """Copies in their three states, each made once and put where it was made for each test.

    An environment belongs to the place and to the interpreter, told by its time, that it was made
    at and with; so the copies of a run take turns in one folder.
    """

    def __init__(self, repository: Path, folder: Path) -> None:
        self._repository = repository
        self._folder = folder
        self._place = folder / "now"

    @contextlib.contextmanager
    def state(self, name: str, *scripts: str) -> Iterator[ProjectCopy]:
        """Give a copy in which these scripts have been run once."""
        kept = self._folder / name
        if not kept.exists():
            made = ProjectCopy(self._place)
            made.make(self._repository)
            for script in scripts:
                done = made.run(script=script)
                assert done.returncode == 0, done.stderr
            made.forget()
            self._place.rename(kept)
        shutil.copytree(kept, self._place, symlinks=True)
        try:
            yield ProjectCopy(self._place)
        finally:
            shutil.rmtree(self._place)


@pytest.fixture(scope="session")
def kept(repository: Path) -> Iterator[Kept]:
    folder = Path(tempfile.mkdtemp(prefix="shs-"))
    folder.chmod(0o755)
    yield Kept(repository, folder)
    shutil.rmtree(folder)


@pytest.fixture
def copy(kept: Kept) -> Iterator[ProjectCopy]:
    """A copy without an environment."""
    with kept.state("bare") as copy:
        yield copy


@pytest.fixture
def ready(kept: Kept) -> Iterator[ProjectCopy]:
    """A copy whose environment was made by its command."""
    with kept.state("ready", "scripts/softhca") as copy:
        yield copy


@pytest.fixture
def ready_for_tests(kept: Kept) -> Iterator[ProjectCopy]:
    """A copy whose environment has what the tests need, too."""
    with kept.state("tests", "scripts/test") as copy:
        yield copy


@pytest.fixture
def another_user() -> int | None:
    """The number of a user that is not root, when the tests run as root."""
    return 65534 if os.geteuid() == 0 else None


@pytest.fixture
def free_port() -> int:
    """A TCP port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
