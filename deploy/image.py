"""Build the image for this machine, and for the other platform where an emulator is.

    python deploy/image.py                     # `make image` runs this: the image of the services
    python deploy/image.py aerobee-spark       # another target of docker-bake.hcl

The image for this machine is loaded into the engine. The other one is written to build/image as an
OCI archive. It is skipped, with the reason, if this machine cannot run its programs.

The base is named by its digest, which the registry or the engine knows. A base that was built here
has none. `--pinned` refuses it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = Path("build/image")
BASE = "python:3.11-slim-bookworm"
PLATFORMS = ("linux/amd64", "linux/arm64")
DOCKERFILES = {
    "aerobee": "deploy/Dockerfile",
    "aerobee-spark": "deploy/spark/Dockerfile",
    "aerobee-etcd": "deploy/etcd/Dockerfile",
}
VERSION = re.compile(r'^VERSION = "(.+)"$', re.MULTILINE)


def output(*command: str) -> str | None:
    """Return what a command prints, or None if it fails or is missing."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def variables() -> dict[str, str]:
    """Return what the labels show. The source is set only if the checkout has a public one."""
    text = (ROOT / "proto/src/aerobee_wire/version.py").read_text(encoding="utf-8")
    version = VERSION.search(text)
    assert version is not None, "version.py states no version"
    found = {
        "AEROBEE_VERSION": version[1],
        "AEROBEE_COMMIT": output("git", "rev-parse", "HEAD") or "",
    }
    source = output("git", "remote", "get-url", "origin") or ""
    if source.startswith("https://"):
        found["AEROBEE_SOURCE"] = source.removesuffix(".git")
    return found


def pinned_base() -> str | None:
    """Return the base with its digest, or None if neither the registry nor the engine knows it."""
    inspect = ("docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}")
    found = output(*inspect, BASE)
    if not found:
        pulled = output("docker", "image", "inspect", "--format", "{{json .RepoDigests}}", BASE)
        digests = json.loads(pulled or "[]")
        found = digests[0].rpartition("@")[2] if digests else None
    return f"{BASE}@{found}" if found else None


def native() -> str | None:
    """Return the platform of the engine, or None if no engine answers."""
    return output("docker", "version", "--format", "{{.Server.Os}}/{{.Server.Arch}}")


def emulated() -> set[str] | None:
    """Return the platforms that the builder can build for, or None without buildx."""
    shown = output("docker", "buildx", "inspect", "--bootstrap")
    if shown is None:
        return None
    lines = [line for line in shown.splitlines() if line.startswith("Platforms:")]
    return {name.strip(" *") for line in lines for name in line.partition(":")[2].split(",")}


def skipped(platform: str, can: set[str] | None) -> str | None:
    """Return why a foreign platform cannot be built for, or None if it can."""
    if can is None:
        return "docker has no buildx: install docker-buildx"
    if platform not in can:
        return "no emulator: install qemu-user-static with binfmt"
    return None


def bake(target: str, platform: str, *options: str) -> tuple[str, ...]:
    return (
        *("docker", "buildx", "bake", "--file", "docker-bake.hcl"),
        *("--set", f"{target}.platform={platform}", *options, target),
    )


def build(target: str, found: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command for this machine's platform without buildx."""
    source = found.get("AEROBEE_SOURCE")
    labels = [f"--label=org.opencontainers.image.source={source}"] if source else []
    args = [f"--build-arg={name}={found[name]}" for name in ("AEROBEE_VERSION", "AEROBEE_COMMIT")]
    args.append(f"--build-arg=BASE={found['AEROBEE_BASE']}")
    name = found["AEROBEE_PREFIX"] + target
    tags = [f"--tag={name}:{tag}" for tag in ("latest", found["AEROBEE_VERSION"])]
    return ("docker", "build", "--file", DOCKERFILES[target], *args, *labels, *tags, ".")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(DOCKERFILES))
    parser.add_argument(
        "--prefix", default="", help="of the names of images: a registry's address/"
    )
    parser.add_argument(
        "--pinned", action="store_true", help="fail if the digest of the base is unknown"
    )
    given = parser.parse_args(arguments)
    targets = given.targets or ["aerobee"]
    if unknown := sorted({*targets} - DOCKERFILES.keys()):
        print(f"error: no image {unknown[0]!r}: use {', '.join(DOCKERFILES)}", file=sys.stderr)
        return 2
    found, here, can = {**variables(), "AEROBEE_PREFIX": given.prefix}, native(), emulated()
    if here is None:
        print("error: no Docker engine answers: start it, and see 'docker info'", file=sys.stderr)
        return 1
    pinned = pinned_base()
    if pinned is None:
        known = "neither the registry nor the engine knows its digest"
        if given.pinned:
            print(f"error: {BASE} is not pinned: {known}: docker pull {BASE}", file=sys.stderr)
            return 1
        print(f"not pinned: {BASE}: {known}", file=sys.stderr)
    found["AEROBEE_BASE"] = pinned or BASE
    environment = {**os.environ, **found}
    for target in targets:
        for platform in sorted(PLATFORMS, key=lambda each: each != here):
            if platform == here:
                loaded = bake(target, platform, "--load")
                command = build(target, found) if can is None else loaded
            elif (why := skipped(platform, can)) is not None:
                print(f"skipped {target} for {platform}: {why}", file=sys.stderr)
                continue
            else:
                (ROOT / OUTPUT).mkdir(parents=True, exist_ok=True)
                archive = OUTPUT / f"{target}-{platform.rpartition('/')[2]}.tar"
                command = bake(
                    target, platform, "--set", f"{target}.output=type=oci,dest={archive}"
                )
            done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
            if done.returncode:
                print(f"error: {target} for {platform} was not built", file=sys.stderr)
                return 1
            print(f"built {target} for {platform}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
