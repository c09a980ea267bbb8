"""The official RocketMQ SDKs, unmodified, each in an environment of its own below build/sdk.

They cannot load into this process: their generated protocol code and ours declare the same names.
`make test` installs them; a test that finds one missing is skipped and says so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SDKS = Path(__file__).resolve().parents[2] / "build" / "sdk"


def python_interpreter() -> Path:
    """The interpreter that has the official Python SDK. Skips the test when it is not there."""
    if not (SDKS / "python" / ".installed").is_file():
        pytest.skip("no official Python SDK: run `make build/sdk/python/.installed`")
    return SDKS / "python" / "bin" / "python"
