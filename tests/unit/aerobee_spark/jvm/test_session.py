"""The Python of a session's processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from aerobee_spark.jvm.session import worker_python

NAMES = ("PYTHONPATH", "OMP_NUM_THREADS")
SHOWN = f"import json, os; print(json.dumps([os.environ[name] for name in {NAMES}]))"


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"OMP_NUM_THREADS": "3"}, "3")])
def test_numpy_starts_no_threads_unless_a_number_is_set(
    given: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/one folder:/other")
    python = worker_python(tmp_path)
    environ = {"PYTHONPATH": "pyspark.zip", **given}
    shown = subprocess.run([python, "-Sc", SHOWN], env=environ, capture_output=True, check=True)
    assert json.loads(shown.stdout) == ["/one folder:/other", expected]
