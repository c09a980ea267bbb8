"""The pytest plugin as a stranger has it: the test of docs/testing.md in an environment of its own,
with the built wheels.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import grpc
import pytest

from aerobee_client.testing import SuiteProcess
from support.processes.service import namesrv_and_broker
from support.repository.tree import ROOT, distributions

pytestmark = pytest.mark.slow

TEST_FILE = "test_orders.py"  # docs/testing.md runs: pytest test_orders.py
RUN_TIMEOUT_S = 120.0
OURS = ("aerobee", "aerobee-client")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheels of the extra, and third-party packages from here; nothing
    of this repository's tree."""
    folder = tmp_path_factory.mktemp("stranger")
    wheels = folder / "wheels"
    sources = [str(d.folder) for d in distributions() if d.name in OURS]
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = (*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels))
    subprocess.run([*built, *sources], check=True, capture_output=True, timeout=RUN_TIMEOUT_S)
    venv.create(folder / "venv", with_pip=False)
    made = folder / "venv" / "bin" / "python"
    into = (*pip, "--python", str(made), "install", "--no-deps", "--no-index")
    found = sorted(map(str, wheels.glob("*.whl")))
    subprocess.run([*into, *found], check=True, capture_output=True, timeout=RUN_TIMEOUT_S)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    third_party = Path(grpc.__file__).parents[1]
    (site / "third_party.pth").write_text(f"{third_party}\n")
    return made


def documented() -> str:
    """The test of docs/testing.md."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1]


def run_pytest(python: Path, folder: Path, *arguments: str) -> str:
    """Its output. Fails with it when a test fails."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    done = subprocess.run(
        [str(python), "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments],
        cwd=folder, env=env, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_stranger_s_test_sees_a_message_die(python: Path, tmp_path: Path) -> None:
    text = documented()
    (tmp_path / TEST_FILE).write_text(text)
    assert len([line for line in text.splitlines() if line and "import" not in line]) <= 10
    assert "1 passed" in run_pytest(python, tmp_path, TEST_FILE)


def test_it_costs_nothing_where_no_test_uses_it(python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("""
import sys

def test_nothing_is_imported(request):
    assert request.config.pluginmanager.hasplugin("aerobee_client.testing.plugin")
    ours = {name for name in sys.modules if name.startswith("aerobee")}
    assert ours == {"aerobee_client", "aerobee_client.testing", "aerobee_client.testing.plugin"}
    assert "grpc" not in sys.modules and "google.protobuf" not in sys.modules
""")
    # Of the other plugins here some import more.
    output = run_pytest(python, tmp_path, "-p", "no:hypothesispytest", "test_other.py")
    assert "1 passed" in output
    assert not list(tmp_path.glob("**/suite.log"))


def test_four_workers_have_a_suite_each(python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_workers.py").write_text("""
import os
import pytest
from pathlib import Path
from aerobee_client import Message, Producer

@pytest.mark.parametrize("number", range(16))
def test_names_are_its_own(rocketmq, number):
    topic = rocketmq.topic("t", queues=1)
    with Producer() as producer:
        producer.send(Message(topic=topic, body=b"7"))
    assert len(rocketmq.messages(topic)) == 1
    Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(rocketmq.namesrv)
""")
    assert "16 passed" in run_pytest(python, tmp_path, "-n", "4", "test_workers.py")
    suites = [path.read_text() for path in tmp_path.glob("gw*")]
    assert len(suites) == len(set(suites)) == 4


def test_coroutines_of_pytest_asyncio_and_plain_tests_share_a_suite(
    python: Path, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nrocketmq_set =\n    brokerName=mine\n")
    (tmp_path / "test_both.py").write_text("""
import pytest
from aerobee_client import AsyncProducer, Message, Producer

@pytest.mark.asyncio
async def test_asyncio(async_rocketmq):
    topic = await async_rocketmq.topic()
    async with AsyncProducer() as producer:
        await producer.send(Message(topic=topic, body=b"7"))
    await async_rocketmq.advance(days=1)
    (message,) = await async_rocketmq.messages(topic)
    assert (message.body, message.broker_name) == (b"7", "mine")

def test_plain(rocketmq, rocketmq_suite):
    assert rocketmq.namesrv == rocketmq_suite.namesrv
    with Producer() as producer:
        producer.send(Message(topic=rocketmq.topic(), body=b"7"))
""")
    assert "2 passed" in run_pytest(python, tmp_path, "test_both.py")


def test_a_running_suite_is_used_with_its_proxy_and_its_control(
    python: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_given.py").write_text("""
def test_all_of_it_works(rocketmq):
    assert rocketmq.proxy
    rocketmq.topic()
    rocketmq.advance(hours=1)
""")
    with SuiteProcess(tmp_path / "data") as suite:
        given = f"--rocketmq-namesrv={suite.namesrv}"
        assert "1 passed" in run_pytest(python, tmp_path, given, "test_given.py")


def test_a_running_cluster_is_used_and_has_no_control(python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_given.py").write_text("""
import pytest
from aerobee_client import Code, Message, MqError, Producer

def test_names_and_peeks_work(rocketmq):
    topic = rocketmq.topic()
    with Producer() as producer:
        producer.send(Message(topic=topic, body=b"7"))
    assert len(rocketmq.messages(topic)) == 1
    for refused in (lambda: rocketmq.advance(hours=1), rocketmq.kill_broker):
        with pytest.raises(MqError) as raised:
            refused()
        assert raised.value.code is Code.REQUEST_CODE_NOT_SUPPORTED
        assert "test-control" in str(raised.value)
""")
    with namesrv_and_broker(tmp_path / "data") as (namesrv, _):
        given = f"--rocketmq-namesrv={namesrv.address}"
        assert "1 passed" in run_pytest(python, tmp_path, given, "test_given.py")
