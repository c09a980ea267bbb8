"""A broker group of real processes, which share a name server: masters, slaves, their logs."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.client import AsyncAdminClient
from aerobee_wire.status import Code, MqError
from support.broker.calls import BrokerCaller
from support.clock.polling import until, until_sync
from support.processes.service import ServiceProcess, namesrv_process, unless_set
from support.stubs import Stub

BROKER = "group-a"
LOG_FILE_BYTES = 1 << 20


class Member:
    """One broker of the group. `number`: its brokerId; `name`: its brokerName; `module`, `env` and
    `prefix` as of ServiceProcess."""

    def __init__(
        self,
        data: Path,
        number: int,
        namesrv: str,
        *settings: str,
        name: str = BROKER,
        module: str = "aerobee_broker",
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.number = number
        self.data = data
        self._since = 0  # log lines of earlier runs
        self.store = data / "broker" / "store"
        given = [f"--set={setting}" for setting in settings]
        defaults = (
            *(f"--set=brokerName={name}", f"--set=brokerId={number}"),
            f"--set=mappedFileSizeCommitLog={LOG_FILE_BYTES}",
        )
        self.process = ServiceProcess(
            module,
            *("--port", "0", "--data", str(data), "--namesrv", namesrv),
            *unless_set(defaults, given),
            *given,
            env=env,
            prefix=prefix,
        )

    @property
    def address(self) -> str:
        return self.process.address

    def start(self) -> Self:
        self._since = len(self.process.log)
        self.process.start()
        return self

    def role(self) -> str:
        """That it took last, in this run or one before."""
        taken = self.process.events("role_taken")
        return str(taken[-1]["role"]) if taken else ""

    def events_now(self, event: str) -> list[dict[str, Any]]:
        """The log lines of this event, in this run."""
        return [line for line in self.process.log[self._since :] if line["event"] == event]

    def leads_now(self) -> bool:
        """In this run."""
        taken = self.events_now("role_taken")
        return self.process.is_running and bool(taken) and taken[-1]["role"] == "master"

    def refusals(self) -> list[dict[str, Any]]:
        """The log lines that say why it follows nobody."""
        return self.process.events("not_following")

    def log(self) -> bytes:
        """Its files, from the first one's beginning."""
        files = sorted(path for path in (self.store / "commitlog").iterdir() if path.name.isdigit())
        return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


class BrokerGroup:
    """`members` by number; those that run when the group ends are stopped."""

    def __init__(
        self,
        data: Path,
        namesrv: str,
        stack: contextlib.ExitStack,
        first: int = 0,
        *,
        name: str = BROKER,
        python: str = sys.executable,
    ) -> None:
        """`first`: the number of the first member. `name`: the brokerName of all. `python`: with
        which members are started at first."""
        self.name = name
        self.namesrv = namesrv
        self.members: list[Member] = []
        self._data = data
        self._stack = stack
        self._first = first
        self._python = python

    def add(self, *settings: str) -> Member:
        """Started, with the next number."""
        return self.add_all(1, *settings)[0]

    def add_all(self, count: int, *settings: str) -> list[Member]:
        """As many, started at once."""
        first = self._first + len(self.members)
        added = [
            Member(self._data / str(number), number, self.namesrv, *settings, name=self.name)
            for number in range(first, first + count)
        ]
        for member in added:
            member.process.python = self._python
            self._stack.callback(member.process.stop)
        self.members += added
        with ThreadPoolExecutor() as pool:
            list(pool.map(Member.start, added))
        return added

    def lose_disk(self, member: Member) -> None:
        """Of a member that does not run: its next start finds nothing."""
        shutil.rmtree(member.data)

    def restart_as(self, member: Member, number: int, *settings: str) -> Member:
        """The same store under another number and role, once the process has ended."""
        member.process.stop()
        again = Member(member.data, number, self.namesrv, *settings, name=self.name)
        self._stack.enter_context(again.process)
        return again

    async def registered(self) -> namesrv_pb2.BrokerMembers:
        """The members that the name server has."""
        async with grpc.aio.insecure_channel(self.namesrv) as channel:
            stub = Stub(namesrv_pb2, channel)
            async for answer in stub.WatchBrokers(namesrv_pb2.WatchBrokersRequest()):
                known: list[namesrv_pb2.BrokerMembers] = list(answer.brokers)
                return next(each for each in known if each.broker_name == self.name)
        raise AssertionError("the name server has ended the stream")

    def until_led(self, *but: Member) -> Member:
        """Until another member than these is master."""

        def leading() -> Member | None:
            leading = (each for each in self.members if each not in but and each.leads_now())
            return next(leading, None)

        member = until_sync(leading, "a member leads", timeout_s=60)
        assert member is not None
        return member

    def until_leads(self, member: Member) -> None:
        until_sync(member.leads_now, f"{member.number} leads", timeout_s=60)

    def until_in_sync(self, master: Member, *slaves: Member, timeout_s: float = 60) -> None:
        """Until the set that the master wrote last is itself and these."""
        wanted = {str(member.number) for member in (master, *slaves)}

        def in_sync() -> set[str]:
            changes = master.events_now("in_sync_set_changed")
            members = changes[-1]["members"] if changes else []
            return {name.split()[0] for name in members}

        until_sync(lambda: in_sync() == wanted, f"in sync: {sorted(wanted)}", timeout_s=timeout_s)

    async def statuses(self) -> dict[int, d.ReplicaDescription]:
        """What the replicas that answer say, by number."""
        async with AsyncAdminClient(self.namesrv) as admin:
            found = await admin.replicas(self.name, silent=[])
        return {each.replica_id: each for each in found}

    async def until_confirmed(self, master: Member, *slaves: Member) -> None:
        """Until the slaves show everything that the master's log has now."""
        end = (await self.statuses())[master.number].end_offset

        async def confirmed() -> bool:
            known = await self.statuses()
            return all(
                slave.number in known and known[slave.number].confirmed_offset >= end
                for slave in slaves
            )

        await until(confirmed, f"confirmed up to {end}", timeout_s=60)

    def until_alike(self, master: Member, *slaves: Member) -> None:
        """Until the slaves have the master's log, byte for byte. The master may still append to it:
        its offsets are records too, and are written later than what moved them."""

        def alike() -> bool:
            log = master.log()
            assert log, "the master's log has bytes"
            return all(slave.log() == log for slave in slaves)

        until_sync(alike, "the slaves have the master's log", timeout_s=60)


@contextlib.contextmanager
def broker_group(
    data: Path, first: int = 0, *, python: str = sys.executable
) -> Iterator[BrokerGroup]:
    """Without members yet, whose numbers begin at `first`; a name server runs. What the members
    said is printed, for a test that fails. `python`: with which members are started at first."""
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_process(data / "namesrv"))
        group = BrokerGroup(data, namesrv.address, stack, first, python=python)
        try:
            yield group
        finally:
            for member in group.members:
                print(member.number, member.process.output)


async def send_until_taken(caller: BrokerCaller, topic: str, body: bytes) -> None:
    """Sends until the broker takes it: until then nothing is stored."""

    async def taken() -> bool:
        try:
            await caller.send(topic, body)
        except MqError as error:
            if error.code is not Code.SLAVE_NOT_AVAILABLE:
                raise
            return False
        return True

    await until(taken, f"{topic} takes sends", timeout_s=60)
