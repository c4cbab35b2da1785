"""Performs the steps of the Dockerfile without a container runtime.

Each stage gets a folder that stands for its root. RUN, COPY, ENV and the rest are read from the
Dockerfile itself, so that what is tested cannot drift from what is built; absolute paths in them
mean paths below that folder. A base image with Python becomes a clean virtual environment in
usr/local. An instruction that is not known here fails the test.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
# What says how pip reaches an index on this machine stays; what would change the result does not.
NOT_INHERITED = re.compile(
    r"PYTHON.*|VIRTUAL_ENV|PIP_(USER|TARGET|PREFIX|REQUIRE_VIRTUALENV)|HF_.*"
)
# How pip tells that no index answers: a failure of the machine, not of the Dockerfile.
NO_NETWORK = "after connection broken by"
NO_EFFECT_HERE = {"EXPOSE", "HEALTHCHECK", "LABEL"}


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Yield (instruction, its text on one line) in order."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, text = line.strip().partition(" ")
            yield name.upper(), text.strip()


@dataclass
class Stage:
    """One stage: the folder that is its root, and the settings that an image would carry."""

    root: Path
    env: dict[str, str]
    workdir: str = "/"
    user: int = 0
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def at(self, path: str) -> Path:
        """Return where `path`, absolute or below the working directory, lies on this machine."""
        return self.root / str(PurePosixPath(self.workdir, path)).lstrip("/")

    def located(self, text: str) -> str:
        """Return `text` with each absolute path in it moved below the root."""
        return re.sub(r"(?<![\w./$:*-])/(?=[a-z])", f"{self.root}/", text)

    def argv(self, *more: str) -> list[str]:
        """Return the command that a container would run, with `more` in place of CMD."""
        words = [*self.entrypoint, *(more or self.command)]
        program = shutil.which(words[0], path=self.env["PATH"])
        assert program is not None, f"{words[0]} is not on the image's PATH"
        return [program, *map(self.located, words[1:])]


class Builder:
    """Performs one Dockerfile below `folder`, with `python` as the one of the base image.

    `world` is this machine's environment.
    """

    def __init__(self, folder: Path, python: str, world: Mapping[str, str]) -> None:
        self.folder = folder
        self.python = python
        self.world = world
        self.stages: dict[str, Stage] = {}

    def perform(self, dockerfile: str) -> dict[str, Stage]:
        stage: Stage | None = None
        for name, text in instructions(dockerfile):
            if name == "FROM":
                stage = self.start(*re.fullmatch(r"(\S+) AS (\S+)", text).groups())
            elif name not in NO_EFFECT_HERE:
                getattr(self, name.lower())(stage, text)
        return self.stages

    def start(self, parent: str, name: str) -> Stage:
        root = self.folder / name
        if parent in self.stages:
            old = self.stages[parent]
            shutil.copytree(old.root, root, symlinks=True, copy_function=os.link)
            told_its_new_place(root, old.root, root)
            env = {k: v.replace(str(old.root), str(root)) for k, v in old.env.items()}
            stage = Stage(root, env, old.workdir, old.user)
        else:
            assert re.fullmatch(r"python:3\.\d+-slim-\w+", parent), f"{parent} is not pinned by tag"
            stage = Stage(
                root, {k: v for k, v in self.world.items() if not NOT_INHERITED.fullmatch(k)}
            )
            (root / "tmp").mkdir(parents=True, mode=0o1777)
            (root / "tmp").chmod(0o1777)
            self.checked([self.python, "-m", "venv", str(root / "usr/local")], stage)
            stage.env["PATH"] = f"{root}/usr/local/bin:{os.defpath}"
        self.stages[name] = stage
        return stage

    def env(self, stage: Stage, text: str) -> None:
        for word in shlex.split(text):
            key, _, value = word.partition("=")
            stage.env[key] = stage.located(value).replace("$PATH", stage.env["PATH"])
        # A cache makes an image larger and not different; here it saves downloads.
        stage.env.pop("PIP_NO_CACHE_DIR", None)

    def workdir(self, stage: Stage, text: str) -> None:
        stage.workdir = text
        stage.at(".").mkdir(parents=True, exist_ok=True)

    def copy(self, stage: Stage, text: str) -> None:
        *sources, target = shlex.split(text)
        origin = None
        if sources[0].startswith("--from="):
            origin = self.stages[sources.pop(0).removeprefix("--from=")]
        for source in sources:
            found = origin.at(source) if origin else ROOT / source
            # As Docker does: of a folder the content, and a file into a target that ends in /.
            if found.is_dir():
                shutil.copytree(
                    found,
                    stage.at(target),
                    symlinks=True,
                    copy_function=os.link if origin else shutil.copy2,
                    dirs_exist_ok=True,
                    ignore=None if origin else shutil.ignore_patterns("__pycache__"),
                )
            else:
                shutil.copy(
                    found,
                    stage.at(target) / found.name if target.endswith("/") else stage.at(target),
                )
        if origin:
            told_its_new_place(stage.at(target), origin.root, stage.root)

    def run(self, stage: Stage, text: str) -> None:
        self.checked(["/bin/sh", "-c", stage.located(text)], stage)

    def user(self, stage: Stage, text: str) -> None:
        stage.user = int(text.split(":", maxsplit=1)[0])

    def entrypoint(self, stage: Stage, text: str) -> None:
        stage.entrypoint = json.loads(text)

    def cmd(self, stage: Stage, text: str) -> None:
        stage.command = json.loads(text)

    def checked(self, argv: list[str], stage: Stage) -> None:
        done = subprocess.run(
            argv,
            cwd=stage.at("."),
            env=stage.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 and NO_NETWORK in done.stderr + done.stdout:
            raise ConnectionError(done.stderr)
        assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"


def told_its_new_place(tree: Path, old: Path, new: Path) -> None:
    """Change the old root to the new one in the scripts of virtual environments below `tree`.

    Inside images both have the same path, "/"; here each stage has a root of its own.
    """
    for config in tree.rglob("pyvenv.cfg"):
        for file in (config, *(config.parent / "bin").iterdir()):
            if file.is_file() and not file.is_symlink():
                text = file.read_bytes()
                if str(old).encode() in text:
                    mode = file.stat().st_mode
                    file.unlink()  # the stages share their unchanged files
                    file.write_bytes(text.replace(str(old).encode(), str(new).encode()))
                    file.chmod(mode)


@pytest.fixture(scope="session")
def base_python(require) -> str:
    """Return a Python with venv that the user of the images may run."""
    candidates = [
        sys._base_executable,
        "/usr/bin/python3.11",
        "/usr/bin/python3",
        "/usr/local/bin/python3",
    ]
    check = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
    nobody = {"user": 65532, "group": 65532, "extra_groups": []} if os.geteuid() == 0 else {}
    for python in filter(os.path.exists, candidates):
        try:
            if (
                subprocess.run([python, "-c", check], cwd="/", check=False, **nobody).returncode
                == 0
            ):
                return python
        except PermissionError:
            continue
    require("a Python that every user may run", False, "apt-get install python3 python3-venv")
    raise AssertionError


@pytest.fixture(scope="session")
def images(base_python: str, world, require) -> Iterator[dict[str, Stage]]:
    """Yield the stages of the Dockerfile, built."""
    # Not tmp_path: another user has to get in.
    with tempfile.TemporaryDirectory(prefix="warmroute-image-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        try:
            yield Builder(folder, base_python, world).perform(
                (ROOT / "Dockerfile").read_text("utf-8")
            )
        except ConnectionError as error:
            last_line = str(error).strip().splitlines()[-1]
            require("a package index", False, f"pip reached none ({last_line})")
