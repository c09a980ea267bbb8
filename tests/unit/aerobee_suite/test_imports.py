"""Services run without gRPC's library, which takes 10 MB of each process."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print([name for name in sys.modules if name == "grpc" or name.startswith("grpc.")])
"""


@pytest.mark.parametrize("service", ["namesrv", "broker", "proxy", "suite"])
def test_a_service_does_not_load_the_library_of_grpc(service: str) -> None:
    modules = [f"aerobee_{service}.__main__", f"aerobee_{service}.app"]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *modules], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
