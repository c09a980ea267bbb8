"""The environment in which a reader runs what the pages say.

The reader has installed the packages with `make install` and has set nothing. `aerobee` is on the
PATH, as the pages write it. The Python of `.venv` is not: the reader writes `.venv/bin/python`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.running import secure

BIN = Path(sys.executable).parent
# Prefixes of variables that change what Python, Spark or Aerobee do.
_CHANGING = ("AEROBEE_", "NAMESRV_ADDR", "PYSPARK_", "_PYSPARK", "PYTHON", "SPARK_", "VIRTUAL_ENV")


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a reader who works in `folder`, and link `.venv` there.

    `bin` in the folder gets the command.
    """
    commands = folder / "bin"
    if not commands.exists():
        commands.mkdir()
        (commands / "aerobee").symlink_to(BIN / "aerobee")
        (folder / ".venv").symlink_to(BIN.parent)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_CHANGING)}
    others = [part for part in kept["PATH"].split(os.pathsep) if Path(part) != BIN]
    own = {"AEROBEE_CONTEXT_DIR": str(folder / "contexts")}
    if (closed := secure.enabled()) is not None:  # as if the reader had sourced admin.env
        own |= closed.client_environment()
    return kept | own | {"PATH": os.pathsep.join([str(commands), *others])}
