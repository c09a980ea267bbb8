"""Dead letters that are damaged, expired or odd: sent as they are stored, or told as missing."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path
from typing import Any

from aerobee.broker.v1 import message_pb2

from aerobee_client import AsyncAdminClient, AsyncProducer
from aerobee_client.admin import export
from aerobee_client.admin.dead_letters import DeadLetters, Selection
from aerobee_client.admin.redriving.listed import ListedDeadLetters
from aerobee_client.admin.redriving.message_ids import MessageIds
from aerobee_client.admin.redriving.outcome import Outcome, Status
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.run import Redrive, Settings
from aerobee_wire import properties as names
from aerobee_wire.compression import SYS_FLAGS
from support.client.dead_letters import DEAD, GROUP, add_dead_letter, read_all
from support.client.memory import MemoryBroker, MemoryCluster
from support.clock.manual_clock import ManualClock


async def redriven(
    producer: AsyncProducer, letters: DeadLetters | ListedDeadLetters
) -> list[Outcome]:
    settings = Settings(consumer_group=GROUP, target=Target.ORIGIN)
    ids = MessageIds()
    redrive = Redrive(settings, producer, clock=ManualClock(), ids=ids)
    outcomes = [outcome async for window in redrive.run(letters.pages()) for outcome in window]
    ids.close()
    return outcomes


async def test_a_compressed_body_is_sent_as_it_is_stored_damaged_or_not(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    whole = zlib.compress(b"late " * 500)
    bodies = {"whole": whole, "damaged": whole[:20] + b"\0" * 9 + whole[29:], "cut": whole[:10]}
    for message_id, body in bodies.items():
        encoded = names.encode({names.UNIQUE_KEY: message_id, names.DLQ_ORIGIN_TOPIC: "orders"})
        brokers[0].append(DEAD, 0, body, encoded, sys_flag=SYS_FLAGS["zlib"])
    exported = [export.full(letter) for letter in await read_all(admin)]
    assert ["body_problem" in item for item in exported] == [False, True, True]
    outcomes = await redriven(producer, DeadLetters(admin, GROUP))
    assert [outcome.status for outcome in outcomes] == [Status.SENT] * 3
    stored = {
        record.properties[names.UNIQUE_KEY]: (record.body, record.sys_flag & 0x701)
        for broker in brokers
        for record in broker.messages("orders")
    }
    assert stored == {name: (body, SYS_FLAGS["zlib"]) for name, body in bodies.items()}


async def test_bodies_of_any_bytes_and_letters_without_keys_and_tag_are_sent(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    encoded = names.encode({names.UNIQUE_KEY: "A", names.DLQ_ORIGIN_TOPIC: "orders"})
    brokers[0].append(DEAD, 0, b"\xff\xfe\x00\x01\x02", encoded)
    assert [outcome.tag for outcome in await redriven(producer, DeadLetters(admin, GROUP))] == [""]
    (again,) = [*brokers[0].messages("orders"), *brokers[1].messages("orders")]
    assert again.body == b"\xff\xfe\x00\x01\x02"
    assert not again.properties.keys() & {names.KEYS, names.TAGS}


async def test_two_brokers_with_the_same_places_are_both_redriven(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    for broker in brokers:
        for n in range(3):
            add_dead_letter(broker, UNIQ_KEY=f"{broker.name}-{n}")
    outcomes = await redriven(producer, DeadLetters(admin, GROUP))
    expected = [f"{name}-{n}" for name in "ab" for n in range(3)]
    assert [outcome.message_id for outcome in outcomes] == expected


async def test_what_retention_took_since_a_list_was_made_is_missing(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    tmp_path: Path,
) -> None:
    for n in range(5):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    lines = [json.dumps(export.summary(letter)) + "\n" for letter in await read_all(admin)]
    path = tmp_path / "list"
    await asyncio.to_thread(path.write_text, "".join(lines))

    def expired(_: str, request: Any) -> message_pb2.PullResponse | None:
        if request.queue_offset >= 3:
            return None
        return message_pb2.PullResponse(
            status=message_pb2.OFFSET_MOVED, min_offset=3, max_offset=5, next_begin_offset=3
        )

    cluster.answers["Pull"] = expired
    listed = ListedDeadLetters(admin, GROUP, path, Selection())
    outcomes = await redriven(producer, listed)
    found = {outcome.message_id: outcome.status for outcome in outcomes}
    assert [found[f"ID{n}"] for n in range(5)] == [*[Status.MISSING] * 3, *[Status.SENT] * 2]
    assert len(brokers[0].messages("orders")) + len(brokers[1].messages("orders")) == 2
