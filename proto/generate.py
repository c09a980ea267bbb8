"""Generates proto/gen from the .proto files: the one protoc call of the repository.

Run it after every change to a .proto file; `make check` runs it into a scratch directory and fails
when the committed code differs.

    python proto/generate.py            # rewrite proto/gen
    python proto/generate.py --check    # compare only

Contracts that others own (RocketMQ's, etcd's, gRPC's, protobuf's well-known types) become the
package `aerobee_foreign`, in a descriptor pool of its own: other packages of the same process
register the same names in protobuf's default pool.
"""

from __future__ import annotations

import argparse
import filecmp
import re
import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent
FOREIGN = "aerobee_foreign"
FOREIGN_ROOTS = ("apache", "etcd", "grpc")
WELL_KNOWN = ("google/protobuf/duration.proto", "google/protobuf/timestamp.proto")


def sources(*roots: str) -> list[str]:
    """The .proto files below `roots`, relative to `proto/`, sorted."""
    return sorted(
        str(p.relative_to(HERE)) for root in roots for p in (HERE / root).rglob("*.proto")
    )


def generate(out: Path) -> None:
    """Write messages and their stubs for type checkers into `out`.

    Raises SystemExit on a protoc error.
    """
    compile_into(out, sources("aerobee"))
    foreign = [*sources(*FOREIGN_ROOTS), *WELL_KNOWN]
    compile_into(out / FOREIGN, foreign)
    shutil.copyfile(HERE / "foreign.py", out / FOREIGN / "__init__.py")
    modules = {file.removesuffix(".proto").replace("/", ".") + "_pb2" for file in foreign}
    for path in (out / FOREIGN).rglob("*_pb2*.py*"):
        path.write_text(apart(path.read_text(encoding="utf-8"), modules), encoding="utf-8")


def compile_into(out: Path, protos: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    well_known = str(resources.files("grpc_tools") / "_proto")
    kinds = [f"--{kind}_out={out}" for kind in ("python", "pyi")]
    if protoc.main(["protoc", f"-I{HERE}", f"-I{well_known}", *kinds, *protos]) != 0:
        raise SystemExit("protoc failed: see the message above")


def apart(code: str, modules: set[str]) -> str:
    """Return the code of a foreign module, with the pool and the imports of `aerobee_foreign`."""

    def prefixed(found: re.Match[str]) -> str:
        package, module = found.groups()
        ours = f"{package}.{module}" in modules
        return f"from {FOREIGN}.{package} import {module} as" if ours else found.group()

    code = re.sub(r"^from (\S+) import (\w+) as", prefixed, code, flags=re.MULTILINE)
    replaced = {
        "from google.protobuf.internal import builder": f"from {FOREIGN} import POOL, builder",
        "_descriptor_pool.Default()": "POOL",
        "(DESCRIPTOR, '": f"(DESCRIPTOR, '{FOREIGN}.",
    }
    for old, new in replaced.items():
        code = code.replace(old, new)
    return code


def files_below(root: Path) -> set[Path]:
    return {p.relative_to(root) for p in root.rglob("*.py*") if "__pycache__" not in p.parts}


def differences(committed: Path, fresh: Path) -> list[str]:
    """Return the paths that differ or are missing on one side, sorted."""
    ours, new = files_below(committed), files_below(fresh)
    changed = {p for p in ours & new if not filecmp.cmp(committed / p, fresh / p, shallow=False)}
    return sorted(str(p) for p in (ours ^ new) | changed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    options = parser.parse_args()
    if not options.check:
        shutil.rmtree(HERE / "gen", ignore_errors=True)
        generate(HERE / "gen")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = differences(HERE / "gen", Path(scratch))
    if stale:
        print(f"proto/gen is stale: {', '.join(stale)}. Run: python proto/generate.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
