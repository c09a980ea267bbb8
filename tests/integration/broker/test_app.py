"""A broker inside this process, on real sockets: what a test can only do from inside."""

from __future__ import annotations

import asyncio
import errno
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aerobee.broker.v1 import message_pb2

from aerobee_broker.app import BrokerApp
from aerobee_broker.cluster.identity import free_port
from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import RealDisk, RealFile
from aerobee_chassis.errors import PortInUse, StartError
from aerobee_wire.status import Code, MqError
from support.broker.calls import BrokerCaller
from support.clock.polling import until
from support.codes import raises_about, raises_code
from support.disk.broken_disk import BrokenDisk


def options(path: Path, **fields: Any) -> BrokerOptions:
    small = {"listenPort": 0, "mappedFileSizeCommitLog": 8 << 20, "storePathRootDir": path}
    return BrokerOptions.from_values({**small, **fields})


async def test_a_failed_flush_makes_the_broker_read_only_and_it_says_so(tmp_path: Path) -> None:
    disk = BrokenDisk()
    exporter = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
    app = BrokerApp(options(tmp_path, **exporter), disk=disk)
    await app.start()
    async with BrokerCaller(app.address) as broker:
        await broker.send("t", b"good")
        assert await broker.serves()
        disk.sync_error = errno.EIO
        for body in (b"not flushed", b"refused"):
            with pytest.raises(MqError) as caught:
                await broker.send("t", body)
            assert (caught.value.code, caught.value.retryable) == (Code.SERVICE_NOT_AVAILABLE, True)
        disk.sync_error = 0
        with raises_code(Code.SERVICE_NOT_AVAILABLE):
            await broker.send("t", b"still refused")
        assert [message.body for message in await broker.read("t")] == [b"good"]
        assert "flushing" in (await broker.status()).read_only_reason

        async def not_serving() -> bool:
            return not await broker.serves()

        await until(not_serving, "health answers NOT_SERVING")
        url = f"http://{app.ready_fields['metrics']}/readyz"
        with pytest.raises(urllib.error.HTTPError) as answer:
            await asyncio.to_thread(urllib.request.urlopen, url, timeout=10)
        assert answer.value.code == 503
    await app.stop()


async def test_a_failed_start_releases_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = BrokerApp(options(tmp_path / "first"))
    await first.start()
    port = int(first.address.rpartition(":")[2])
    second = BrokerApp(options(tmp_path / "second", listenPort=port))
    with raises_about(PortInUse, first.address):
        await second.start()
    await second.stop()
    # The table belongs to the process that has locked the store. Another one does not read it.
    (tmp_path / "first" / "config" / "accessTable.json").write_text("half written")
    third = BrokerApp(options(tmp_path / "first"))
    with raises_about(StartError, str(tmp_path / "first")):
        await third.start()
    await third.stop()
    # A free port that somebody takes first: another one is tried, on the same data.
    ports = iter([port, port])
    taken = "aerobee_broker.app.free_port"
    monkeypatch.setattr(taken, lambda host: next(ports, 0) or free_port(host))
    fourth = BrokerApp(options(tmp_path / "second"))
    await fourth.start()
    assert fourth.address != first.address
    await fourth.stop()
    await first.stop()


async def test_a_thousand_long_polls_each_get_their_message(tmp_path: Path) -> None:
    queues = 1_000
    app = BrokerApp(options(tmp_path))
    await app.start()
    async with BrokerCaller(app.address) as broker:
        await broker.put_topic("t", queues=queues)
        pulls = [
            asyncio.create_task(broker.pull("g", "t", queue_id=queue, suspend_timeout_ms=30_000))
            for queue in range(queues)
        ]

        async def parked() -> bool:
            return (await broker.status()).parked_pulls == queues

        await until(parked, "all pulls are parked")
        messages = [
            message_pb2.Message(topic="t", queue_id=queue, body=b"%d" % queue)
            for queue in range(queues)
        ]
        await broker.call(broker.messages.Send, message_pb2.SendRequest(messages=messages))
        answers = await asyncio.gather(*pulls)
        assert [answer.messages[0].body for answer in answers] == [b"%d" % n for n in range(queues)]
        assert (await broker.status()).parked_pulls == 0
    await app.stop()


async def test_a_cancelled_pull_leaves_no_long_poll(tmp_path: Path) -> None:
    app = BrokerApp(options(tmp_path))
    await app.start()
    async with BrokerCaller(app.address) as broker:
        await broker.put_topic("t")
        pull = asyncio.create_task(broker.pull("g", "t", suspend_timeout_ms=30_000))

        async def parked(count: int) -> bool:
            return (await broker.status()).parked_pulls == count

        await until(partial(parked, 1), "the pull is parked")
        pull.cancel()
        await until(partial(parked, 0), "it is gone")
    await app.stop()


class FullDisk(RealDisk):
    """There is no room for anything new."""

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        class File(RealFile):
            __slots__ = ()

            def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
                if self.path.name != "checkpoint" and "commitlog" not in self.path.parts:
                    raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
                super().pwrite(data, offset)

        file = super().open(path, create=create)
        return File(file.path, file._fd)


async def test_a_broker_starts_on_a_full_disk_and_serves_what_is_there(tmp_path: Path) -> None:
    app = BrokerApp(options(tmp_path))
    await app.start()
    async with BrokerCaller(app.address) as broker:
        await broker.send("t", b"kept")
    await app.stop()
    disk = FullDisk()
    disk.remove(tmp_path / "config" / "topics.json")
    app = BrokerApp(options(tmp_path), disk=disk)
    await app.start()
    async with BrokerCaller(app.address) as broker:
        assert [message.body for message in await broker.read("t")] == [b"kept"]
    await app.stop()
