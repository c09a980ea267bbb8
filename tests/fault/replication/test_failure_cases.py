"""What is lost, and what goes on, when brokers of two groups of two copies each are gone: one
slave, both, one master, both, a whole group, everything. Real processes, killed.

| off | what a user sees |
|---|---|
| 1 one slave | every send succeeds, at the other group where this one asks for two copies |
| 2 both slaves | with a strict requirement every send fails, until one is back; else none fails |
| 3 one master | every send succeeds; its slave becomes master |
| 4 both masters | sends fail until a group has as many copies as it asks for |
| 5 master and slave of one group | every send succeeds, at the other group |
| 6 everything | all sends fail; it comes back in any order, without an operator |

In the end everything that was acknowledged is there.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee_client import AdminClient, PullConsumer
from aerobee_client.errors import BrokerUnreachable
from aerobee_wire.status import Code
from fault.conftest import Campaign
from support.clock.polling import until_sync
from support.etcd.etcd_process import etcd_members
from support.processes.broker_group import BrokerGroup, Member
from support.processes.sending import Sending
from support.processes.service import namesrv_process


@dataclass(frozen=True)
class Setup:
    """`strict`: a group takes sends only with both copies. `synchronous`: a send waits for them.
    `elected`: by etcd; else a person promotes."""

    elected: bool
    synchronous: bool
    strict: bool = True

    def __str__(self) -> str:
        how = "synchronous" if self.synchronous else "asynchronous"
        by = "etcd" if self.elected else "hand"
        return f"{by}-{how}-{'strict' if self.strict else 'one_suffices'}"


STRICT = Setup(elected=True, synchronous=True)
BY_HAND = Setup(elected=False, synchronous=True)
SETUPS = (
    STRICT,
    Setup(elected=True, synchronous=True, strict=False),
    Setup(elected=True, synchronous=False, strict=False),
    BY_HAND,
    Setup(elected=False, synchronous=True, strict=False),
    Setup(elected=False, synchronous=False, strict=False),
)


def start(group: BrokerGroup, setup: Setup, *settings: str) -> None:
    """Start both members of a group."""
    copies = ("totalReplicas=2", *settings)
    role = "SYNC_MASTER" if setup.synchronous else "ASYNC_MASTER"
    least = ["inSyncReplicas=2"] if setup.synchronous else []
    if setup.synchronous and not setup.strict:
        least.append("enableAutoInSyncReplicas=true")
    if setup.elected:
        group.add_all(2, f"brokerRole={role}", *least, *copies)
    else:
        group.add(f"brokerRole={role}", *least, *copies)
        group.add("brokerRole=SLAVE", *least, *copies)


class Pair:
    """A group of two. `master` as it was before anything failed."""

    def __init__(self, group: BrokerGroup) -> None:
        self.group = group
        self.until_in_sync()
        self.master = self.leading()
        (self.slave,) = [each for each in group.members if each is not self.master]

    def leading(self) -> Member:
        return self.group.until_led()

    def until_in_sync(self) -> None:
        master = self.leading()
        slaves = [each for each in self.group.members if each is not master]
        self.group.until_in_sync(master, *slaves)


class Cluster:
    """Both groups, as they are before a case: the master of one may have been its slave."""

    def __init__(self, groups: list[BrokerGroup], namesrv: str, setup: Setup) -> None:
        self.pairs = [Pair(group) for group in groups]
        self.namesrv = namesrv
        self.setup = setup

    @property
    def masters(self) -> list[Member]:
        return [pair.master for pair in self.pairs]

    @property
    def slaves(self) -> list[Member]:
        return [pair.slave for pair in self.pairs]

    def promote(self, pair: Pair, *, unclean: bool = False) -> None:
        """Its slave; without etcd, where nobody elects it."""
        with AdminClient(self.namesrv) as admin:
            admin.promote_replica(pair.group.name, to=pair.slave.number, unclean=unclean)

    def stored(self, topic: str) -> set[bytes]:
        """The bodies of all messages of a topic that are shown."""
        with PullConsumer(namesrv=self.namesrv) as reader:
            reader.assign(reader.fetch_message_queues(topic))
            # gRPC shares the connections of a process: what the producer saw fail is tried again
            # up to a second later.
            until_sync(reader.end_offsets, "both masters answer", retry_on=(BrokerUnreachable,))
            return {message.body for message in reader.read_to_end()}

    def diverged(self, bodies: set[bytes]) -> set[bytes]:
        """Those of `bodies` that are in what a replica has cut from its log."""
        cut = b"".join(
            path.read_bytes()
            for pair in self.pairs
            for member in pair.group.members
            for path in (member.store / "diverged").glob("*.log")
        )
        return {body for body in bodies if body in cut}


@contextlib.contextmanager
def clusters(path: Path, setup: Setup) -> Iterator[Callable[[], Cluster]]:
    """Start two groups. What is yielded waits until they are whole, and returns the cluster."""
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_process(path / "namesrv")).address
        settings = ["haMaxTimeSlaveNotCatchup=1000", "slaveTimeout=2000"]
        if setup.elected:
            [etcd] = stack.enter_context(etcd_members(path))
            settings += [f"etcdEndpoints={etcd.endpoint}", "etcdLeaseTtl=2"]
        first = int(setup.elected)
        groups = [BrokerGroup(path / name, namesrv, stack, first, name=name) for name in ("a", "b")]
        try:
            for group in groups:
                start(group, setup, *settings)
            yield lambda: Cluster(groups, namesrv, setup)
        finally:
            for group in groups:
                for member in group.members:
                    print(group.name, member.number, member.process.output)


def kill(*members: Member) -> None:
    for member in members:
        member.process.kill()


def back(*members: Member) -> None:
    for member in members:
        member.start()


# ---- the cases ----


def one_slave(made: Cluster, sending: Sending) -> None:
    kill(made.slaves[0])
    sending.until_more()
    assert not sending.failed
    back(made.slaves[0])


def both_slaves(made: Cluster, sending: Sending) -> None:
    kill(*made.slaves)
    if made.setup.strict:
        sending.until_fails(Code.SLAVE_NOT_AVAILABLE)
        back(made.slaves[0])
        sending.until_more()
        back(made.slaves[1])
    else:
        sending.until_more()
        assert not sending.failed
        back(*made.slaves)


def one_master(made: Cluster, sending: Sending) -> None:
    pair = made.pairs[0]
    kill(pair.master)
    sending.until_more()
    if not made.setup.elected:
        made.promote(pair, unclean=not made.setup.strict)
    assert pair.leading() is pair.slave
    sending.until_more()
    assert not sending.failed
    back(pair.master)


def both_masters(made: Cluster, sending: Sending) -> None:
    kill(*made.masters)
    if made.setup.elected:
        for pair in made.pairs:
            assert pair.leading() is pair.slave
    if made.setup.strict or not made.setup.elected:
        sending.until_fails()
    else:
        sending.until_more()
    back(*made.masters)


def one_group(made: Cluster, sending: Sending) -> None:
    pair = made.pairs[0]
    kill(pair.master, pair.slave)
    sending.until_more()
    assert not sending.failed
    back(pair.slave, pair.master)


def everything(made: Cluster, sending: Sending) -> None:
    members = [*made.masters, *made.slaves]
    kill(*members)
    sending.until_fails()
    random.Random(len(sending.sent)).shuffle(members)
    back(*members)


CASES: tuple[Callable[[Cluster, Sending], None], ...] = (
    one_slave,
    both_slaves,
    one_master,
    both_masters,
    one_group,
    everything,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All setups in the campaign; else those that promise most, with etcd and without."""
    setups = SETUPS if metafunc.config.getoption("--campaign") else (STRICT, BY_HAND)
    metafunc.parametrize("setup", setups, ids=str)


def test_the_six_cases(setup: Setup, campaign: Campaign, tmp_path: Path) -> None:
    """One after the other on the same brokers. Each case has a topic of its own."""
    acknowledged: dict[str, set[bytes]] = {}
    with clusters(tmp_path, setup) as whole:
        for case in CASES:
            made, topic = whole(), case.__name__
            patience_s = 3 if case in (both_slaves, both_masters, everything) else 30
            with Sending(made.namesrv, topic, queues=2, timeout_s=patience_s) as sending:
                case(made, sending)
                began = time.monotonic()
                sending.until_more()
                for pair in made.pairs:
                    pair.until_in_sync()
                healed_s = time.monotonic() - began
            acknowledged[topic] = set(sending.sent)
            for each, bodies in acknowledged.items():
                lost = bodies - made.stored(each)
                if not setup.synchronous:  # what only the old master had is in a file of its
                    lost -= made.diverged(lost)
                of = f"{len(bodies)} acknowledged in {each}"
                assert not lost, f"{len(lost)} of {of} are gone after {topic}"
            sent, refused = len(sending.sent), len(sending.failed)
            campaign.report(
                f"{topic}: {sent} acknowledged, 0 lost, {refused} refused, all in sync "
                f"{healed_s:.1f} s after the last one was back"
            )
