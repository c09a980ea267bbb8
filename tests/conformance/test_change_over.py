"""Sections *Close a running cluster* and *Change the authority* of docs/change_over.md, under load.

The commands and options are those of the page. Official SDKs and the classic client send and
receive all the time, the SDKs through a load balancer. No send fails, no call is rejected, and each
message is received.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from aerobee_client import AdminClient, Credentials, MqError, Tls, credentials
from aerobee_client.cluster import transport
from support.clock.polling import until_sync
from support.processes import certificates
from support.processes.loads import ClassicLoad, Load, SdkLoad
from support.processes.service import ServiceProcess, broker_process, namesrv_process, proxy_process
from support.proxy.balancer import Balancer
from support.proxy.official_sdk import OfficialSdk, newest
from support.repository import reader
from support.repository.tree import ROOT

pytestmark = pytest.mark.slow

SDKS = ("node", "python")
USER = "billing"
FILES = ("namesrv", "broker", "broker-b", "proxy", "proxy")  # of the processes
CHANGE_OVER, ROTATION = "Close a running cluster", "Change the authority"
SOON = "--set=tlsCertWatchIntervalMs=500"  # proxies look for new certificates
SECRET_USED_S = 10.0  # after a change of the file, with the times of this test
KNOWN_S = 90.0  # until all clients use a broker again: SDKs ask for routes every 30 s


def blocks(heading: str, language: str) -> list[str]:
    """Return the blocks under a heading of docs/change_over.md."""
    page = (ROOT / "docs" / "change_over.md").read_text(encoding="utf-8")
    section = re.split(r"^#+ ", page.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.M)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


class Cluster:
    """A name server, two brokers and two proxies. The processes that were restarted are closed."""

    def __init__(self, home: Path, sdks: Sequence[OfficialSdk], stack: ExitStack) -> None:
        self.home = home
        self.sdks = sdks
        self.secure = home / "secure"
        self._stack = stack
        enter = stack.enter_context
        self.namesrv = enter(namesrv_process(home / "namesrv"))
        self.brokers = {
            name: enter(
                broker_process(home / name, f"--set=brokerName={name}", namesrv=self.address)
            )
            for name in ("broker-a", "broker-b")
        }
        self.proxies = [enter(proxy_process(self.address, SOON)) for _ in range(2)]
        self.balancer = enter(Balancer([proxy.address for proxy in self.proxies]))
        self._own = {id(each): list(each.arguments) for each in self.processes}

    @property
    def address(self) -> str:
        return self.namesrv.address

    @property
    def processes(self) -> list[ServiceProcess]:
        return [self.namesrv, *self.brokers.values(), *self.proxies]

    @property
    def tls(self) -> Tls:
        return Tls(self.secure / "ca.crt", self.secure / "admin.crt", self.secure / "admin.key")

    def run(self, block: str) -> None:
        """Run a block of the page, as its reader would."""
        environment = reader.environment(self.home) | {"NAMESRV_ADDR": self.address}
        done = subprocess.run(
            ["bash", "-euc", block], cwd=self.home, env=environment, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"

    def restart(self, options: str, loads: Sequence[Load], tls: Tls | None = None) -> None:
        """Restart the processes one after the other, with these options and their files.

        All of them accept TLS already, or all accept plaintext until the end.
        """
        sets = [f"--set={line}" for line in options.split()]
        for process, file in zip(self.processes, FILES, strict=True):
            config = ["--config", str(self.secure / f"{file}.conf")]
            process.arguments = [*self._own[id(process)], *config, *sets]
            process.restart()
            if name := next((n for n, each in self.brokers.items() if each is process), ""):
                self._until_used(name, loads, tls)
            for load in loads:
                load.until_more()

    def _until_used(self, broker: str, loads: Sequence[Load], tls: Tls | None) -> None:
        """Wait until each load has sent to a broker again."""
        with AdminClient(self.address, tls=tls) as admin:

            def ends() -> dict[str, int]:
                return {
                    load.topic: sum(
                        queue.max_offset
                        for queue in admin.topic_status(load.topic)
                        if queue.broker_name == broker
                    )
                    for load in loads
                }

            before = until_sync(ends, "the broker answers", timeout_s=60, retry_on=(MqError,))

            def used() -> bool:
                return all(end > before[topic] for topic, end in ends().items())

            until_sync(used, f"{broker} is used", timeout_s=KNOWN_S, retry_on=(MqError,))

    def loads(
        self, name: str, *, tls: Tls | None = None, roots: Path | None = None
    ) -> dict[str, Load]:
        """Start a load of each client. With `tls`, they are clients of USER."""
        topics = [f"{name}-{each}" for each in ("classic", *(sdk.language for sdk in self.sdks))]
        with AdminClient(self.address, tls=tls and self.tls) as admin:
            for topic in topics:
                admin.create_topic(topic, queues=4)
                admin.create_group(topic)
        secret = self.home / "billing.secret"
        user = Credentials(USER, secret_key_file=str(secret)) if tls else None
        pair = (USER, secret.read_text().strip()) if tls else ("", "")
        endpoints = self.balancer.address
        made: list[Load] = [ClassicLoad(self.address, topics[0], tls, user)]
        made += [
            SdkLoad(sdk, endpoints, topic, self.home, credentials=pair, roots=roots)
            for sdk, topic in zip(self.sdks, topics[1:], strict=True)
        ]
        for load in made:
            self._stack.enter_context(load)
            load.until_more()
        return {load.topic: load for load in made}

    def rejections(self) -> list[object]:
        """Return what the processes logged about rejected calls of clients.

        Before brokers use TLS, they cannot exchange users with a name server that does.
        """
        lines = [
            line
            for process in self.processes
            for event in ("call_rejected", "call_refused")
            for line in process.events(event)
        ]
        return [line for line in lines if "/aerobee.access." not in line.get("rpc", "")]

    def observed(self) -> set[tuple[str, str]]:
        """Return (caller, RPC) of calls that would be rejected."""
        return {
            (line["caller"], line["rpc"].rpartition("/")[2])
            for process in self.processes
            for line in process.events("call_would_be_rejected")
        }


def check(loads: Sequence[Load], cluster: Cluster) -> None:
    """End the loads, and check that they noticed nothing."""
    for load in loads:
        load.finish()
        assert load.failed == [] and load.rejected == []
        assert len(load.sent) > 20
    assert cluster.rejections() == []


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    both = request.config.getoption("--every-sdk")
    sdks = [newest(language) for language in (SDKS if both else SDKS[:1])]
    for sdk in sdks:
        assert sdk.built  # or the tests are skipped
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), sdks, stack)


def test_change_over(cluster: Cluster) -> None:
    made, users = blocks(CHANGE_OVER, "sh")
    permissive, enforcing = blocks(CHANGE_OVER, "properties")
    before = cluster.loads("open")
    cluster.run(made)
    cluster.restart(permissive, list(before.values()))
    # The users are those of the page; each call so far would be rejected.
    cluster.run(users)
    seen = cluster.observed()
    assert ("", "Send") in seen and ("", "SendMessage") in seen
    ca = cluster.secure / "ca.crt"
    after = cluster.loads("closed", tls=Tls(ca), roots=ca)
    check(list(before.values()), cluster)
    cluster.restart(enforcing, list(after.values()), cluster.tls)
    assert not {rpc for caller, rpc in cluster.observed() - seen if caller == f"user {USER}"}
    with pytest.raises(MqError), AdminClient(cluster.address) as admin:
        admin.list_topics()
    check(list(after.values()), cluster)


def until_reloaded(processes: Sequence[ServiceProcess], counts: Sequence[int]) -> None:
    """Wait until processes that call others have read their files again."""
    for process, count in zip(processes, counts, strict=True):
        until_sync(partial(has_reloaded, process, count), "new files")


def has_reloaded(process: ServiceProcess, count: int) -> bool:
    return reloads(process) > count


def reloads(process: ServiceProcess) -> int:
    return len(process.events("caller_certificates_reloaded"))


def test_authority_certificates_and_secret_change_under_load(
    request: pytest.FixtureRequest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not request.config.getoption("--every-sdk"):
        pytest.skip("`make secure-suites` runs it")
    for module in (credentials, transport):
        monkeypatch.setattr(module, "RELOAD_S", 1.0)
    monkeypatch.setattr(transport, "DRAIN_S", 2.0)
    both, replaced, one, secret, finish = blocks(ROTATION, "sh")
    ca, callers = cluster.secure / "ca.crt", cluster.processes[1:]
    old, old_ca = cluster.home / "old.crt", ca.read_bytes()
    old.write_bytes(old_ca)
    counts = [reloads(each) for each in callers]
    cluster.run(both)
    until_reloaded(callers, counts)
    # The SDKs are restarted with both authorities. The classic client reads the file again.
    loads = cluster.loads("first", tls=Tls(ca), roots=ca)
    classic = loads["first-classic"]
    counts = [reloads(each) for each in callers]
    cluster.run(replaced)
    until_reloaded(callers, counts)
    for process, file in zip(cluster.processes, FILES, strict=True):
        serial = certificates.serial(cluster.secure / f"{file}.crt")
        until_sync(lambda: certificates.shown(process.port) == serial, "the new certificate")  # noqa: B023
    cluster.balancer.hang_up()
    for load in loads.values():
        load.until_more()
    cluster.run(one)
    with AdminClient(cluster.address, tls=cluster.tls) as admin:
        assert "first-classic" in admin.topic_names()
    with pytest.raises(MqError), AdminClient(cluster.address, tls=Tls(old)) as admin:
        admin.topic_names()

    cluster.run(secret)
    renewed = cluster.loads("second", tls=Tls(ca), roots=ca)
    check([load for load in loads.values() if load is not classic], cluster)
    # The classic client reads the file again, and then makes its streams again.
    classic.until_receives_since(time.monotonic() + SECRET_USED_S)
    cluster.run(finish)
    for load in (classic, *renewed.values()):
        load.until_more()
    check([classic, *renewed.values()], cluster)
