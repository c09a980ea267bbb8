"""Environments as a stranger has them: of one Python, with packages from wheels alone, offline.

The wheels of other projects are downloaded once for each Python, by the lock of what users install,
and are kept in build/wheels.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.repository.tree import ROOT

VERSIONS = ("3.11", "3.12", "3.13")
LOCK = ROOT / "deploy" / "requirements-users.lock"
WHEELS = ROOT / "build" / "wheels"
RUN_TIMEOUT_S = 300.0
OF_VENV = {"pip", "setuptools"}  # come with each environment, or up to Python 3.11


@functools.cache
def pythons() -> dict[str, Path]:
    """Version → interpreter, of those that this machine has."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    found = {}
    for version in VERSIONS:
        on_path = shutil.which(f"python{version}")
        built = [path for root in roots for path in sorted(root.glob(f"{version}.*/bin/python"))]
        candidates = [*([Path(on_path)] if on_path else []), *built]
        # A shim of pyenv may be on the path and lead to nothing.
        found[version] = next((path for path in candidates if _is(path, version)), None)
    return {version: path for version, path in found.items() if path is not None}


def this_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _is(python: Path, version: str) -> bool:
    asked = "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def wheels(version: str) -> Path:
    """A folder with the wheels of the lock for a Python, which are downloaded if it is new."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    target = WHEELS / f"{version}-{digest}"
    if target.is_dir():
        return target
    WHEELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WHEELS) as scratch:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--python", str(pythons()[version])),
                *("download", "--quiet", "--require-hashes", "--no-deps"),
                *("--only-binary", ":all:", "--dest", scratch, "-r", str(LOCK)),
            ],
            check=True,
            timeout=RUN_TIMEOUT_S,
        )
        shutil.copytree(scratch, target)
    return target


class Environment:
    """The folder of a stranger: `home`, with nothing in it but what commands make.

    `env`: what the commands have, which is nothing of this repository, and no index of packages.
    """

    def __init__(self, home: Path, version: str, built: Path) -> None:
        """`version`: of Python. `built`: the folder with our wheels."""
        self.home = home
        self.version = version
        self.bin = home / "env" / "bin"
        self.env = {
            "PATH": f"{pythons()[version].parent}:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INDEX": "1",
            # Compiling all modules takes longer than compiling those that are imported.
            "PIP_COMPILE": "no",
            "PIP_FIND_LINKS": f"{wheels(version)} {built}",
        }
        home.mkdir(parents=True, exist_ok=True)

    def install(self, *requirements: str) -> None:
        """Into `env`, which is made if it is missing, without a pip of its own."""
        if not self.bin.exists():
            self.run("python3", "-m", "venv", "--without-pip", "env")
        pip = (sys.executable, "-m", "pip", "--python", str(self.bin / "python"))
        self.run(*pip, "install", "--quiet", *requirements)

    def installed(self) -> set[str]:
        """The names of the packages, without those that come with an environment."""
        listed = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
        return set(self.python(listed).split()) - OF_VENV

    def python(self, program: str, **environ: str) -> str:
        return self.run(str(self.bin / "python"), "-c", program, **environ)

    def run(self, *command: str, **environ: str) -> str:
        """What a command prints. Fails with all of its output if its exit code is not 0."""
        done = self.finished(command, environ)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def finished(
        self, command: tuple[str, ...], environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.home,
            env={**self.env, **environ},
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
