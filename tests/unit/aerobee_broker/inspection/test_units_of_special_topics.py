"""`aerobee store check` derives the units of each kind of topic as their broker did."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.disk import RealDisk
from aerobee_broker.inspection.__main__ import main
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.replication.log.epochs import EpochFile, EpochHistory
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from support.broker.harness import SMALL, Begin, BrokerHarness
from support.lite.broker_client import PARENT, LiteConsumer, bind, make_parent, send_lite

SETS = [f"--set={key}={value}" for key, value in SMALL.items()]
Sends = Callable[[BrokerHarness], Awaitable[None]]


async def to_lite_topics(harness: BrokerHarness) -> None:
    await make_parent(harness)
    await bind(harness, wildcard=True)
    for name in ("alpha", "beta", "alpha"):
        await send_lite(harness, name, b"one", b"two")
    await LiteConsumer(harness).pop()
    await harness.send(PARENT, b"of no lite topic", properties={props.TAGS: "red"})


async def to_priorities(harness: BrokerHarness) -> None:
    attributes = {"message.type": "PRIORITY"}
    await harness.broker.topics.put(TopicConfig("urgent", 3, 3, attributes=attributes))
    for queue_id in range(3):
        await harness.send("urgent", b"x", queue_id=queue_id, properties={props.TAGS: "red"})


async def to_delays(harness: BrokerHarness) -> None:
    for delay in ({props.DELAY: "3"}, {props.TIMER_DELAY_SEC: "3600"}):
        await harness.send("orders", b"later", properties=delay)


async def to_a_topic_that_was_of_the_type_lite(harness: BrokerHarness) -> None:
    await to_lite_topics(harness)
    await harness.broker.administration.delete_topic(PARENT)
    await harness.send(PARENT, b"by tag", properties={props.TAGS: "red", "__LITE_TOPIC": "alpha"})


async def made(begin: Begin, path: Path, sends: Sends) -> Path:
    """A store with these messages, closed. `path`: as --data of its broker."""
    store = path / "broker" / "store"
    harness = await begin(store.parent)
    await sends(harness)
    await harness.end()
    return store


def check(path: Path, capsys: pytest.CaptureFixture[str], *sets: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()  # what the broker has logged
    code = main(["check", str(path), "--json", *SETS, *sets])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("above", [0, 2])
@pytest.mark.parametrize(
    "sends",
    [to_lite_topics, to_priorities, to_delays, to_a_topic_that_was_of_the_type_lite],
)
async def test_healthy_store_has_nothing_wrong(
    sends: Sends, above: int, begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await made(begin, tmp_path, sends)
    code, report = check([store, *store.parents][above], capsys)
    assert (code, report["problems"], report["notes"]) == (0, [], [])
    assert report["units"] > 0


async def test_changed_unit_of_a_lite_topic_is_found(
    begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await made(begin, tmp_path, to_lite_topics)
    path = min((store / "consumequeue" / PARENT / "0").iterdir())
    data = bytearray(path.read_bytes())
    data[20 + 12] ^= 1  # the tags code of the second unit
    path.write_bytes(data)
    code, report = check(tmp_path, capsys)
    assert code == 1
    assert [problem["file"] for problem in report["problems"]] == [str(path)]


async def test_topics_are_known_by_their_folders_where_the_table_cannot_say_it(
    begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its table is damaged; or it is of a replica, whose table may be older than its log."""
    store = await made(begin, tmp_path, to_lite_topics)
    table = store / "config" / "topics.json"
    table.with_name("topics.json.bak").unlink(missing_ok=True)
    whole = table.read_bytes()
    table.write_text("{")
    _, report = check(tmp_path, capsys)
    assert [problem["file"] for problem in report["problems"]] == [str(table)]
    table.unlink()
    _, report = check(tmp_path, capsys)
    assert [problem["file"] for problem in report["problems"]] == [str(table)]
    table.with_name("topics.changes.bak").unlink()
    assert check(tmp_path, capsys)[0] == 1  # nothing says so for a store without replicas
    EpochFile(RealDisk(), store / "config" / "epochs.json").save(EpochHistory())
    assert check(tmp_path, capsys)[0] == 0
    table.write_bytes(whole)


async def test_other_delays_of_levels_are_a_note(
    begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await made(begin, tmp_path, to_delays)
    levels = "--set=messageDelayLevel=1s 5s 7s"
    code, report = check(tmp_path, capsys, levels)
    assert (code, report["problems"], len(report["notes"])) == (0, [], 1)
    assert "messageDelayLevel" in report["notes"][0]

    path = min((store / "consumequeue" / names.SCHEDULE_TOPIC / "2").iterdir())
    data = bytearray(path.read_bytes())
    data[17] ^= 1  # of the deliver time
    path.write_bytes(data)
    code, report = check(tmp_path, capsys)
    assert code == 1 and len(report["problems"]) == 1
