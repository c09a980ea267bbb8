"""Write NOTICE: the licences of what our images and wheels contain besides our own code.

    python deploy/notice.py          # after a change of a lock file, or of a vendored script

The licences are in the metadata of the installed packages. Their texts are in the images, beside
each package, and in the console's folder for its scripts.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTICE = ROOT / "NOTICE"
VENDORED = "clients/console/src/aerobee_console/static/vendor/vendored.toml"
IMAGES = {
    "The image of the services (aerobee)": "deploy/requirements-services.lock",
    "The image for Spark (aerobee-spark)": "deploy/requirements-spark.lock",
}
HEAD = """Aerobee

The images of Aerobee contain packages of others, under the licences below. Their texts are in the
images, in the folder of each package. The images also contain Debian packages, whose licences are
below /usr/share/doc. The Python packages of Aerobee contain only the scripts of the console.
"""
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")
_WINDOWS = "sys_platform == 'win32'"
# Licences that metadata names in other words, by their texts.
SPDX = {
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only WITH Classpath-exception-2.0",
}


def pinned(lock: Path) -> Mapping[str, list[str]]:
    """Return the versions of each package that a lock file installs on Linux."""
    found: dict[str, list[str]] = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        pin = _PIN.match(line)
        if pin and _WINDOWS not in line:
            found.setdefault(pin[1], []).append(pin[2])
    return found


def licence(package: str) -> str:
    """Return the SPDX expression of an installed package. Raises PackageNotFoundError."""
    fields = metadata(package)
    kinds = [
        each.rpartition(" :: ")[2]
        for each in fields.get_all("Classifier", [])
        if each.startswith("License :: ") and not each.endswith("OSI Approved")
    ]
    said = fields["License-Expression"] or fields["License"] or " AND ".join(kinds)
    return SPDX.get(said, said)


def notice() -> str:
    """Return the content of NOTICE. Raises PackageNotFoundError."""
    parts = [HEAD]
    for title, lock in IMAGES.items():
        rows = [
            f"  {name} {' or '.join(versions)}: {licence(name)}"
            for name, versions in sorted(pinned(ROOT / lock).items())
        ]
        parts.append("\n".join([title, "", *rows, ""]))
    scripts = tomllib.loads((ROOT / VENDORED).read_text(encoding="utf-8"))
    rows = [
        f"  {name} {fields['version']}: {fields['licence']}"
        for name, fields in sorted(scripts.items())
    ]
    parts.append("\n".join(["The scripts of the console", "", *rows, ""]))
    return "\n".join(parts)


def main() -> int:
    try:
        text = notice()
    except PackageNotFoundError as error:
        print(f"error: {error.name} is not installed: run make demo once", file=sys.stderr)
        return 1
    NOTICE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
