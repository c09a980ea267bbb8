"""What a broker records in the format of its store, and which stores it does not open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aerobee_broker.disk import Disk, RealDisk, replace_file
from aerobee_broker.errors import StoreOpenError
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.format import (
    EXPONENTIAL_RETRY,
    FEATURES,
    LITE_TOPICS,
    SHRUNK_TOPICS,
    TABLE_CHANGES,
    THIS_BUILD,
    TOPIC_TIMES,
    Build,
    FormatFile,
    StoreTooNew,
)
from aerobee_wire.checked_json import encode
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.codes import raises_about, raises_code
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.lite.broker_client import make_parent

Uses = Callable[[BrokerHarness], Awaitable[object]]
NEXT = Build("9.1.0", {**FEATURES, "tomorrow": "9.0.0"})
STORE = Path("/s/store")


async def retry_exponentially(harness: BrokerHarness) -> None:
    await harness.group("g", exponential_retry=ExponentialRetryPolicy())


async def shrink_a_topic(harness: BrokerHarness) -> None:
    for queues in (4, 2):
        await harness.broker.topics.put(TopicConfig("orders", queues, queues))


async def limit_a_topic(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(TopicConfig("t", 1, 1, attributes={"reserve.time": "1"}))


ALL_USES = pytest.mark.parametrize(
    ("uses", "feature"),
    [
        (make_parent, LITE_TOPICS),
        (retry_exponentially, EXPONENTIAL_RETRY),
        (shrink_a_topic, SHRUNK_TOPICS),
        (limit_a_topic, TOPIC_TIMES),
    ],
)


def required(disk: Disk, store: Path = STORE) -> frozenset[str]:
    """Without what every store has: its tables have change files."""
    file = FormatFile(disk, store, NEXT)
    file.load()
    return file.required - {TABLE_CHANGES}


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@ALL_USES
async def test_feature_is_recorded_when_it_is_first_used(
    uses: Uses, feature: str, begin: Begin, tmp_path: Path
) -> None:
    harness = await begin()
    assert required(RealDisk(), tmp_path / "store") == frozenset()
    await uses(harness)
    assert required(RealDisk(), tmp_path / "store") == {feature}


@ALL_USES
async def test_store_of_a_build_that_wrote_no_format_gets_one_with_what_it_uses(
    uses: Uses, feature: str, begin: Begin, tmp_path: Path
) -> None:
    await uses(await begin())
    harness = await begin()
    topics, groups = harness.tables.topics.to_json(), harness.tables.groups.to_json()
    await harness.end()
    path = tmp_path / "store" / "config" / "format.json"
    path.unlink()
    harness = await begin()
    assert required(RealDisk(), tmp_path / "store") == {feature}
    assert (harness.tables.topics.to_json(), harness.tables.groups.to_json()) == (topics, groups)


@ALL_USES
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_of_a_feature_is_on_the_disk_before_it_is_recorded(
    uses: Uses, feature: str, seed: int
) -> None:
    """The power goes at any change of the disk. A build without the feature would open the store of
    those of them after which nothing is recorded: it must find nothing of it there."""
    counted = SimulatedDisk()
    harness = await BrokerHarness.begin(STORE.parent, disk=counted)
    begun = counted.steps
    await uses(harness)
    steps = counted.steps - begun
    harness.store.abandon()
    for crash_at in range(steps):
        disk = SimulatedDisk(seed)
        harness = await BrokerHarness.begin(STORE.parent, disk=disk)
        disk.crash_at = disk.steps + crash_at
        with pytest.raises(PowerCut):
            await uses(harness)
        after = disk.after_power_cut(seed)
        again = await BrokerHarness.begin(STORE.parent, disk=after.copy())
        found = again.tables.topics.features | again.tables.groups.features
        if after.exists(STORE / "lite" / "sessions"):
            found.add(LITE_TOPICS)
        again.store.abandon()
        assert found <= required(after)


async def test_parent_is_not_created_while_its_feature_cannot_be_recorded() -> None:
    disk = SimulatedDisk()
    harness = await BrokerHarness.begin(STORE.parent, disk=disk)
    disk.fail_writes = lambda path: path.name.startswith("format.json")
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        await make_parent(harness)
    assert "sessions" not in harness.tables.topics
    assert not disk.exists(STORE / "lite" / "sessions")
    harness.store.abandon()


async def test_store_of_a_later_build_is_refused_and_stays_as_it_is(
    begin: Begin, tmp_path: Path
) -> None:
    await make_parent(await begin(build=NEXT))
    harness = await begin(build=NEXT)
    harness.tables.topics.features.add("tomorrow")
    await harness.broker.topics.put(TopicConfig("orders", 4, 4))
    await harness.end()
    before = files_below(tmp_path)
    with pytest.raises(StoreTooNew) as refused:
        await begin()
    assert refused.value.needed == "9.0.0"
    assert files_below(tmp_path) == before


async def test_a_later_build_that_used_nothing_new_leaves_a_store_that_this_one_opens(
    begin: Begin, tmp_path: Path
) -> None:
    await make_parent(await begin(build=NEXT))
    await begin()
    file = FormatFile(RealDisk(), tmp_path / "store")
    file.load()
    assert file.current is not None and file.current.written_by == THIS_BUILD.version


async def test_refused_store_is_not_recovered() -> None:
    """Recovery would cut, wipe and rebuild: the check comes before it, and before the lock."""
    disk = SimulatedDisk()
    disk.make_directory(STORE / "config")
    disk.make_directory(STORE / "commitlog")
    content = {"version": 1, "since": "0.1.0", "writtenBy": "9.0.0", "required": {"x": "9.0.0"}}
    replace_file(disk, STORE / "config" / "format.json", encode(content))
    replace_file(disk, STORE / "commitlog" / ("0" * 20), b"\xff" * 4_096)
    steps, files = disk.steps, disk.files()
    with pytest.raises(StoreTooNew):
        await BrokerHarness.begin(STORE.parent, disk=disk)
    assert (disk.steps, disk.files()) == (steps, files)


async def test_store_of_another_broker_is_refused_and_stays_as_it_is(
    begin: Begin, tmp_path: Path
) -> None:
    """The disks of two brokers were exchanged."""
    harness = await begin()
    await harness.send("t", b"a")
    await harness.end()
    before = files_below(tmp_path / "store")
    with raises_about(StoreOpenError, str(tmp_path / "store" / "config" / "format.json")):
        await begin(brokerName="broker-b")
    assert files_below(tmp_path / "store") == before
    assert await (await begin()).bodies("t") == [b"a"]


def test_owner_of_a_store_is_recorded_once_it_is_known() -> None:
    disk = SimulatedDisk()
    disk.make_directory(STORE / "config")
    file = FormatFile(disk, STORE)
    file.load()
    file.note()
    file.check_owner("c/a")
    file.note((), "c/a")
    file.note({LITE_TOPICS})
    again = FormatFile(disk, STORE)
    again.load()
    again.check_owner("")  # named after its host
    again.check_owner("c/a")
    with pytest.raises(StoreOpenError):
        again.check_owner("c/b")
    assert again.required == {LITE_TOPICS}
