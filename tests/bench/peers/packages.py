"""Bring the products into build/peers: Python packages by a lock, jars by Maven, Debian's packages.

This installs nothing on the machine: it unpacks Debian's packages, so no service starts. A package
that is installed already is used from where it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
BUILD = ROOT / "build" / "peers"
ENVIRONMENT = BUILD / "env"
DEBIAN = BUILD / "debian"
TIMEOUT_S = 1_800.0


class Missing(Exception):
    """A product cannot be had here. The text is one line that says why."""


def python() -> Path:
    """Return the interpreter with the clients of the other products. Raises Missing."""
    lock = HERE / "requirements.lock"
    program = ENVIRONMENT / "bin" / "python"
    if _is_new(ENVIRONMENT, lock):
        _say(f"installing {lock.relative_to(ROOT)} into {ENVIRONMENT.relative_to(ROOT)}")
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        _run(sys.executable, "-m", "venv", ENVIRONMENT)
        _run(
            *(program, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"),
            *("--quiet", "--require-hashes", "-r", lock),
        )
        _done(ENVIRONMENT, lock)
    return program


def jars(product: str) -> Path:
    """Return the folder with the jars of PRODUCT.xml, a POM. Raises Missing."""
    pom, folder = HERE / f"{product}.xml", BUILD / product
    _needs("java")
    if _is_new(folder, pom):
        _needs("mvn")
        _say(f"downloading the jars of {product} into {folder.relative_to(ROOT)}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(pom, folder / "pom.xml")
        _run(
            *("mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies"),
            *("-f", folder / "pom.xml", f"-DoutputDirectory={folder}"),
        )
        _done(folder, pom)
    return folder


def debian(package: str, command: str) -> Path:
    """Return the file `command`, such as "usr/bin/redis-server", unpacked or installed.

    Raises Missing.
    """
    installed = Path("/", command)
    if installed.exists():
        return installed
    folder = DEBIAN / package
    if not (folder / command).exists():
        _needs("apt-get")
        _needs("dpkg-deb")
        _say(f"unpacking Debian's {package} into {folder.relative_to(ROOT)}")
        shutil.rmtree(folder, ignore_errors=True)
        downloads = folder / "downloads"
        downloads.mkdir(parents=True)
        if os.geteuid() == 0:
            _run("apt-get", "-qq", "update")
        planned = _run("apt-get", "-s", "--no-install-recommends", "install", package)
        lines = [line.split() for line in planned.splitlines()]
        wanted = [words[1] for words in lines if words[:1] == ["Inst"]]
        if not wanted:
            raise Missing(f"Debian's {package} has no {command}")
        _run("apt-get", "-qq", "download", *wanted, folder=downloads)
        for archive in downloads.glob("*.deb"):
            _run("dpkg-deb", "-x", archive, folder)
        shutil.rmtree(downloads)
    if not (folder / command).exists():
        raise Missing(f"Debian's {package} has no {command}")
    return folder / command


def environment(command: Path, place: str) -> dict[str, str]:
    """Return the variables with which an unpacked command finds its libraries and programs.

    `place` is its path on a machine where it is installed.
    """
    root = Path(str(command).removesuffix(place))
    if root == Path("/"):
        return {}
    libraries = [str(folder) for folder in root.glob("usr/lib/*-linux-gnu")]
    programs = [str(root / "programs"), str(root / "usr" / "bin"), os.environ.get("PATH", "")]
    return {"LD_LIBRARY_PATH": ":".join(libraries), "PATH": ":".join(programs)}


def _needs(command: str) -> None:
    if shutil.which(command) is None:
        raise Missing(f"{command} is not installed")


def _is_new(folder: Path, source: Path) -> bool:
    mark = folder / ".made-from"
    return not mark.exists() or mark.read_text() != _digest(source)


def _done(folder: Path, source: Path) -> None:
    (folder / ".made-from").write_text(_digest(source))


def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _run(*command: str | Path, folder: Path | None = None) -> str:
    """Return the output of a command. Raises Missing with its last line if it fails."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise Missing(f"{Path(command[0]).name} failed: {lines[-1] if lines else done.returncode}")
    return done.stdout
