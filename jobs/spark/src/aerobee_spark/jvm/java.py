"""Finding the Java that Spark will use: $JAVA_HOME/bin/java, else the `java` on the PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from aerobee_spark.errors import ReportError

OLDEST = 17  # Spark 4 refuses older ones
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ADVICE = (
    f"install Java {OLDEST} or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or set JAVA_HOME to one"
)


def require_java(environ: Mapping[str, str] = os.environ) -> int:
    """The major version. Raises ReportError that says what to install."""
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
