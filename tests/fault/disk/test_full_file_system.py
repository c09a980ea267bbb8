"""F7 with a real broker on a file system of 96 MiB, which another program fills up.

Producers and administrators are refused by a typed error; a new group consumes; producers are let
in once there is room; a kill loses nothing that was acknowledged. As root only: it mounts a tmpfs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aerobee_wire.status import Code, MqError
from support.broker.calls import BrokerCaller
from support.clock.polling import until
from support.codes import raises_code
from support.processes.service import ServiceProcess, broker_process

SMALL_FILES = "--set=mappedFileSizeCommitLog=4194304"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("file systems are mounted by root alone")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder))
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(("umount", str(folder)), check=True)


@pytest.fixture
async def process(small_disk: Path) -> AsyncIterator[ServiceProcess]:
    with broker_process(small_disk / "data", SMALL_FILES) as broker:
        yield broker


def fill(path: Path) -> None:
    """Until the file system has no room."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert shutil.disk_usage(path).free == 0


async def refusal(broker: BrokerCaller) -> Code | None:
    try:
        await broker.send("t", b"refused or not")
    except MqError as error:
        return error.code
    return None


async def test_a_full_file_system_refuses_what_needs_room(
    process: ServiceProcess, small_disk: Path
) -> None:
    filler = small_disk / "filler"
    async with BrokerCaller(process.address) as broker:
        await broker.send("t", b"before")
        fill(filler)
        with raises_code(Code.DISK_FULL):
            await broker.put_group("of-an-administrator", attempts=3)
        created = []
        with raises_code(Code.DISK_FULL):  # some fit into the last page of the change file
            for number in range(100):
                await broker.put_topic(f"created-{number}", queues=3)
                created.append(f"created-{number}")

        async def is_refused() -> bool:
            return await refusal(broker) is Code.DISK_FULL

        async def is_taken() -> bool:
            return await refusal(broker) is None

        await until(is_refused, "producers are refused")
        pulled = await broker.pull("new", "t")
        assert pulled.messages
        filler.unlink()
        await until(is_taken, "producers are let in")
        await broker.put_topic("created", queues=3)
        await broker.put_group("g", attempts=3)
        await broker.send("t", b"after")
        acknowledged = {message.body for message in await broker.read("t")}
    process.kill()
    process.start()
    async with BrokerCaller(process.address) as broker:
        assert {message.body for message in await broker.read("t")} == acknowledged
        assert b"after" in acknowledged
        for topic in [*created, "created"]:
            await broker.send(topic, b"x", queue_id=2)
