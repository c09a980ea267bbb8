"""Dead letters that a file lists: read by their places, in ranges."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_client import AsyncAdminClient, ReceivedMessage
from aerobee_client.admin import export
from aerobee_client.admin.dead_letters import Selection
from aerobee_client.admin.redriving.listed import GAP, ListedDeadLetters, Missing, Place, runs
from aerobee_wire.status import Code
from support.client.dead_letters import GROUP, add_dead_letter, read_all
from support.client.memory import MemoryBroker, MemoryCluster
from support.codes import raises_code

EVERYTHING = Selection()


def write(path: Path, items: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


async def found_by(
    admin: AsyncAdminClient, path: Path, selection: Selection | None = None
) -> list[ReceivedMessage | Missing]:
    listed = ListedDeadLetters(admin, GROUP, path, selection or EVERYTHING)
    return [each async for page in listed.pages() for each in page]


def ids(found: Iterable[ReceivedMessage | Missing]) -> list[str]:
    return [each.message_id for each in found]


async def listed_items(admin: AsyncAdminClient) -> list[dict[str, Any]]:
    return [export.summary(message) for message in await read_all(admin)]


async def test_exactly_what_is_listed_is_read_with_a_call_for_neighbours(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    tmp_path: Path,
) -> None:
    for n in range(500):
        add_dead_letter(brokers[n % 2], UNIQ_KEY=f"ID{n}")
    items = await listed_items(admin)
    wanted = [*items[3:20:4], items[200], items[240], *items[250:300], items[499]]
    cluster.calls.clear()
    found = await found_by(admin, write(tmp_path / "list", reversed(wanted)))
    assert sorted(ids(found)) == sorted(item["message_id"] for item in wanted)
    assert all(isinstance(each, ReceivedMessage) for each in found)
    assert len(cluster.requests("Pull")) == 4, "two ranges on each broker"


async def test_an_export_is_a_list(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, tmp_path: Path
) -> None:
    for message_id in "AB":
        add_dead_letter(brokers[0], b"\xff\x00", UNIQ_KEY=message_id)
    items = [export.full(message) for message in await read_all(admin)]
    assert ids(await found_by(admin, write(tmp_path / "list", items))) == ["A", "B"]


async def test_what_is_not_at_its_place_is_missing(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, tmp_path: Path
) -> None:
    for message_id in "ABC":
        add_dead_letter(brokers[0], UNIQ_KEY=message_id)
    items = await listed_items(admin)
    items[1]["message_id"] = "another"
    beyond = items[2] | {"queue_offset": 9, "message_id": "beyond"}
    far = items[2] | {"queue_offset": 1 << 40, "message_id": "far", "offset_message_id": None}
    found = await found_by(admin, write(tmp_path / "list", [*items, beyond, far]))
    missing = [each.message_id for each in found if isinstance(each, Missing)]
    assert missing == ["another", "beyond", "far"]
    assert ids(each for each in found if not isinstance(each, Missing)) == ["A", "C"]


async def test_two_brokers_with_the_same_queue_ids_are_distinguished(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, tmp_path: Path
) -> None:
    for broker in brokers:
        for message_id in "AB":
            add_dead_letter(broker, UNIQ_KEY=message_id + broker.name)
    items = [item for item in await listed_items(admin) if item["message_id"] in ("Ab", "Ba")]
    found = await found_by(admin, write(tmp_path / "list", items))
    assert sorted(ids(found)) == ["Ab", "Ba"]


async def test_a_selection_narrows_a_list(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, tmp_path: Path
) -> None:
    for tag in ("paid", "unpaid"):
        add_dead_letter(brokers[0], UNIQ_KEY=tag, TAGS=tag)
    path = write(tmp_path / "list", await listed_items(admin))
    assert ids(await found_by(admin, path, Selection(tag="unpaid"))) == ["unpaid"]
    path.write_text("\n\n")
    assert await found_by(admin, path) == []


PLACE: dict[str, Any] = {
    "topic": "%DLQ%billing",
    "broker_name": "a",
    "queue_id": 0,
    "queue_offset": 0,
    "message_id": "A",
}


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "\xff",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps(PLACE | {"topic": "%DLQ%other"}),
        json.dumps(PLACE | {"queue_offset": -1}),
        json.dumps(PLACE | {"queue_offset": "0"}),
        json.dumps(PLACE | {"queue_offset": 1 << 63}),
        json.dumps(PLACE | {"queue_id": 1 << 31}),
        json.dumps(PLACE | {"message_id": None}),
    ],
)
async def test_a_line_that_is_none_is_refused_before_anything_is_read(
    cluster: MemoryCluster, admin: AsyncAdminClient, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "list"
    path.write_bytes(json.dumps(PLACE).encode() + b"\n" + line.encode("latin-1") + b"\n")
    with raises_code(Code.INVALID_PARAMETER):
        await found_by(admin, path)
    assert not cluster.requests("Pull")


async def test_a_pipe_is_refused(cluster: MemoryCluster, admin: AsyncAdminClient) -> None:
    """The file is checked before it is read: a pipe would be empty by then, and nothing sent."""
    reading, writing = os.pipe()
    os.write(writing, json.dumps(PLACE).encode() + b"\n")
    os.close(writing)
    try:
        with raises_code(Code.INVALID_PARAMETER):
            await found_by(admin, Path(f"/dev/fd/{reading}"))
    finally:
        os.close(reading)
    assert not cluster.requests("Pull")


async def test_a_broker_that_no_name_server_knows_is_refused_before_anything_is_read(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient, tmp_path: Path
) -> None:
    add_dead_letter(brokers[0])
    items = [PLACE, PLACE | {"broker_name": "gone"}]
    with raises_code(Code.BROKER_NOT_EXIST) as raised:
        await found_by(admin, write(tmp_path / "list", items))
    assert "gone" in raised.value.message
    assert not cluster.requests("Pull")


async def test_a_list_of_a_group_without_a_dead_letter_topic_is_refused_at_once(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient, tmp_path: Path
) -> None:
    for broker in brokers:
        broker.topics.pop(PLACE["topic"], None)
    with raises_code(Code.TOPIC_NOT_EXIST):
        await found_by(admin, write(tmp_path / "list", [PLACE]))
    assert not cluster.requests("Pull")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 10 * GAP))),
)
def test_runs_hold_each_place_once_and_neighbours_only(places: list[tuple[str, int, int]]) -> None:
    given = sorted(Place(*place, "id", "") for place in places)
    found = list(runs(given))
    assert sorted({*given}) == [place for run in found for place in run]
    for run in found:
        assert len({place[:2] for place in run}) == 1
        for before, after in pairwise(run):
            assert 0 < after.queue_offset - before.queue_offset <= GAP
