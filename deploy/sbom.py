"""Write the bill of materials of an image, in CycloneDX: its Python and Debian packages.

    python deploy/sbom.py aerobee build/sbom    # `make sbom` runs this

It reads the metadata of installed packages in the image, and asks no index. The result is checked
against CycloneDX's schema. It has no time and no random number, so the same image gives the same
file.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SITE = "/opt/aerobee/lib/python3.11/site-packages"
DPKG = "/var/lib/dpkg/status"
OS_RELEASE = "/etc/os-release"


class SbomError(Exception):
    """The bill of materials cannot be written. The message says why."""


def docker(*arguments: str) -> bytes:
    """Return what a command of the engine prints. Raises SbomError."""
    done = subprocess.run(["docker", *arguments], capture_output=True, check=False)
    if done.returncode:
        raise SbomError(done.stderr.decode(errors="replace").strip())
    return done.stdout


def copied(container: str, path: str, into: Path) -> Path:
    """Copy a file or folder of a container that need not run. Raises SbomError."""
    with tarfile.open(
        fileobj=io.BytesIO(docker("cp", "--follow-link", f"{container}:{path}", "-"))
    ) as tar:
        tar.extractall(into, filter="data")
    return into / Path(path).name


def python_packages(site: Path) -> Iterator[tuple[Component, list[str]]]:
    """Yield each distribution in a folder, and the names that it requires."""
    for found in sorted(distributions(path=[str(site)]), key=lambda each: each.name.lower()):
        name, metadata = canonicalize_name(found.name), found.metadata.json
        component = Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=found.version,
            purl=PackageURL("pypi", None, name, found.version),
            bom_ref=f"pkg:pypi/{name}@{found.version}",
            description=metadata.get("summary"),
        )
        if expression := metadata.get("license_expression"):
            component.licenses.add(LicenseExpression(expression))
        yield component, [canonicalize_name(name) for name in required(found)]


def required(found: Distribution) -> Iterator[str]:
    """Yield the names of the distributions that this one needs in the image."""
    for line in found.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def debian_packages(status: Path, release: Path) -> Iterator[Component]:
    """Yield each package that dpkg has installed."""
    distribution = dict(
        line.replace('"', "").split("=", 1)
        for line in release.read_text("utf-8").splitlines()
        if "=" in line
    )
    for block in status.read_text("utf-8").split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " "
        )
        if fields.get("Status") == "install ok installed":
            name, version = fields["Package"], fields["Version"]
            purl = PackageURL(
                "deb", distribution["ID"], name, version, {"arch": fields["Architecture"]}
            )
            yield Component(
                type=ComponentType.LIBRARY,
                name=name,
                version=version,
                purl=purl,
                bom_ref=purl.to_string(),
            )


def bill(image: str, scratch: Path) -> Bom:
    """Return the bill of materials of an image of the engine. Raises SbomError."""
    described = json.loads(docker("image", "inspect", image))[0]
    labels = described["Config"]["Labels"] or {}
    container = docker("create", image).decode().strip()
    try:
        site = copied(container, SITE, scratch)
        status = copied(container, DPKG, scratch)
        release = copied(container, OS_RELEASE, scratch)
    finally:
        docker("rm", "--volumes", container)
    root = Component(
        type=ComponentType.CONTAINER,
        name=image.partition(":")[0],
        version=labels.get("org.opencontainers.image.version") or None,
        bom_ref="image",
        licenses=[LicenseExpression("Apache-2.0")],
    )
    made = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, described["Id"]))
    made.metadata.component = root
    made.metadata.timestamp = None  # the same image, the same file
    python = list(python_packages(site))
    debian = list(debian_packages(status, release))
    made.components.update(component for component, _ in python)
    made.components.update(debian)
    made.register_dependency(root, [*(component for component, _ in python), *debian])
    known = {component.name: component for component, _ in python}
    for component, names in python:
        made.register_dependency(component, [known[name] for name in names if name in known])
    return made


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("image")
    parser.add_argument("folder", type=Path, help="the file is IMAGE.cdx.json in it")
    given = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            text = JsonV1Dot6(bill(given.image, Path(scratch))).output_as_string(indent=1)
        problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
        if problem is not None:
            raise SbomError(f"the result does not fit the schema: {problem}")
    except SbomError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / f"{given.image.partition(':')[0]}.cdx.json"
    path.write_text(text + "\n", encoding="utf-8")
    print(f"wrote {path}: {len(json.loads(text)['components'])} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
