"""An upgrade from the last release: its wheels and those of this tree in one cluster.

AEROBEE_UPGRADE_FROM=COMMIT tries another version than that of the last tag. The wheels of other
projects are those of this environment.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
from io import BytesIO
from pathlib import Path

import grpc
import pytest

from aerobee_client import AdminClient, ConsumeFromWhere, PushConsumer, ReceivedMessage
from support.clock.polling import until_sync
from support.etcd.etcd_process import etcd_members
from support.processes.broker_group import BrokerGroup, Member, broker_group
from support.processes.sending import Sending
from support.processes.service import broker_process, namesrv_process
from support.repository.tree import ROOT

pytestmark = pytest.mark.slow

FROM_VARIABLE = "AEROBEE_UPGRADE_FROM"
BUILD_TIMEOUT_S = 120.0
TOPIC = "orders"

# Sends until its stdin ends, and prints the bodies that were acknowledged.
SENDER = """
import sys, threading
from datetime import timedelta
from aerobee_client import Message, Producer

ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
number = 0
with Producer("old", namesrv=sys.argv[1], retry_another_broker_when_not_store_ok=True) as producer:
    while not ended.is_set():
        body = f"old-{number}"
        producer.send(Message(sys.argv[2], body.encode()), timeout=timedelta(seconds=30))
        print(body, flush=True)
        number += 1
"""


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def previous_version() -> str:
    """The last release before this commit. Skips where there is none."""
    if given := os.environ.get(FROM_VARIABLE):
        return given
    # A tag of this commit itself would compare it with itself.
    described = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if described.returncode != 0:
        pytest.skip(f"no release has a tag yet; {FROM_VARIABLE}=COMMIT names what to upgrade from")
    return described.stdout.strip()


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with the wheels of the previous version, and nothing of this tree."""
    version = previous_version()
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(git("archive", version))) as archive:
        archive.extractall(folder / "tree", filter="data")
    projects = [
        str(path.parent)
        for path in sorted((folder / "tree").rglob("pyproject.toml"))
        if "project" in tomllib.loads(path.read_text(encoding="utf-8"))
    ]
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = (*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir")
    wheels = folder / "wheels"
    subprocess.run([*built, str(wheels), *projects], check=True, timeout=BUILD_TIMEOUT_S)
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    into = (*pip, "--python", str(python), "install", "--quiet", "--no-deps", "--no-index")
    found = map(str, sorted(wheels.glob("*.whl")))
    subprocess.run([*into, *found], check=True, timeout=BUILD_TIMEOUT_S)
    [site] = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "third_party.pth").write_text(f"{Path(grpc.__file__).parents[1]}\n")
    where = "import aerobee_broker, aerobee_client; print(aerobee_broker.__file__)"
    done = subprocess.run([python, "-c", where], check=True, stdout=subprocess.PIPE, text=True)
    assert Path(done.stdout).is_relative_to(site)
    return str(python)


class OldSending:
    """The previous version's client, as `Sending` is this version's."""

    def __init__(self, python: str, namesrv: str) -> None:
        """`sent`: the bodies that were acknowledged. `code`: its exit code, at the end."""
        self.sent: list[bytes] = []
        self.code = -1
        self._command = [python, "-c", SENDER, namesrv, TOPIC]

    def __enter__(self) -> OldSending:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def until_more(self) -> None:
        """Until sends that begin now are acknowledged. A sender that has failed prints no more."""
        assert self._process.stdout is not None
        self.sent += [self._process.stdout.readline().strip().encode() for _ in range(20)]
        assert all(self.sent), "the client of the previous version has failed"

    def __exit__(self, *exc_info: object) -> None:
        rest, _ = self._process.communicate(timeout=60)
        self.sent += [line.encode() for line in rest.split()]
        self.code = self._process.returncode


def upgrade(member: Member) -> None:
    member.process.stop()
    member.process.python = sys.executable
    member.start()


def until_caught_up(group: BrokerGroup, master: Member) -> None:
    slaves = [each for each in group.members if each is not master]
    group.until_in_sync(master, *slaves)
    asyncio.run(group.until_confirmed(master, *slaves))


def until_consumed(namesrv: str, bodies: set[bytes]) -> None:
    """Until a consumer of this version has got these, from the beginning."""
    got: set[bytes] = set()

    def take(message: ReceivedMessage) -> None:
        got.add(message.body)

    first = ConsumeFromWhere.FIRST_OFFSET
    with PushConsumer("readers", take, namesrv=namesrv, consume_from_where=first) as consumer:
        consumer.subscribe(TOPIC)
        until_sync(lambda: got >= bodies, "everything is consumed", timeout_s=60)


def rolling_upgrade(python: str, group: BrokerGroup, master: Member, *, promote: bool) -> None:
    """In the order of docs/upgrade.md: slaves, master; the clients last. The name server of the
    group has this version already."""
    slaves = [each for each in group.members if each is not master]
    until_caught_up(group, master)
    with (
        Sending(group.namesrv, TOPIC, queues=2) as ours,
        OldSending(python, group.namesrv) as theirs,
    ):
        for slave in slaves:
            upgrade(slave)
            until_caught_up(group, master)
            ours.until_more()
            theirs.until_more()
        if promote:
            with AdminClient(group.namesrv) as admin:
                admin.promote_replica(group.name, to=slaves[0].number)
            until_caught_up(group, slaves[0])
        upgrade(master)
        until_caught_up(group, group.until_led(*([master] if promote else [])))
        ours.until_more()
        theirs.until_more()
    assert ours.failed == []
    assert theirs.code == 0
    until_consumed(group.namesrv, {*ours.sent, *theirs.sent})


def test_a_rolling_restart_with_mixed_versions_keeps_taking_sends(
    previous: str, tmp_path: Path
) -> None:
    with (
        etcd_members(tmp_path) as [etcd],
        broker_group(tmp_path / "group", first=1, python=previous) as group,
    ):
        group.add_all(
            3,
            *("brokerRole=SYNC_MASTER", "totalReplicas=3"),
            *(f"etcdEndpoints={etcd.endpoint}", "etcdLeaseTtl=2"),
        )
        rolling_upgrade(previous, group, group.until_led(), promote=False)


def test_without_etcd_an_upgraded_slave_is_promoted_first(previous: str, tmp_path: Path) -> None:
    with broker_group(tmp_path / "group", python=previous) as group:
        master = group.add("brokerRole=SYNC_MASTER", "totalReplicas=3")
        group.add_all(2, "brokerRole=SLAVE", "totalReplicas=3", "inSyncReplicas=2")
        rolling_upgrade(previous, group, master, promote=True)


def test_a_store_of_the_previous_version_opens_with_all_that_is_in_it(
    previous: str, tmp_path: Path
) -> None:
    with namesrv_process(tmp_path / "namesrv") as namesrv:
        broker = broker_process(tmp_path / "broker", namesrv=namesrv.address)
        broker.python = previous
        with broker:
            with Sending(namesrv.address, TOPIC) as sending:
                broker.stop()
                broker.python = sys.executable
                broker.start()
                sending.until_more()
            assert sending.failed == []
            until_consumed(namesrv.address, set(sending.sent))
