"""OffsetService over a broker without sockets."""

from __future__ import annotations

from aerobee.broker.v1 import client_pb2, offset_pb2

from aerobee_wire.status import Code
from support.broker.handlers import Handlers


async def test_offsets_are_stored_queried_and_reset(handlers: Handlers) -> None:
    await handlers.harness.group("g")
    await handlers.harness.send("t", b"a", b"b")
    update = offset_pb2.UpdateConsumerOffsetsRequest(
        consumer_group="g", offsets=[offset_pb2.QueueOffset(topic="t", queue_offset=2)]
    )
    await handlers("UpdateConsumerOffsets", update)
    query = offset_pb2.QueryConsumerOffsetsRequest(consumer_group="g")
    assert [
        stored.queue_offset for stored in (await handlers("QueryConsumerOffsets", query)).offsets
    ] == [2]
    bounds = await handlers("GetQueueOffsets", offset_pb2.GetQueueOffsetsRequest(topic="t"))
    assert [queue.max_offset for queue in bounds.queues] == [2, 0, 0, 0]
    assert (bounds.read_queue_count, bounds.permission) == (4, 6)
    assert bounds.queues[0].latest_timestamp_ms > 0
    brief = offset_pb2.GetQueueOffsetsRequest(topic="t", without_timestamps=True)
    bounds = await handlers("GetQueueOffsets", brief)
    assert [queue.max_offset for queue in bounds.queues] == [2, 0, 0, 0]
    assert not any(queue.latest_timestamp_ms for queue in bounds.queues)
    reset = offset_pb2.ResetConsumerOffsetsRequest(consumer_group="g", topic="t", timestamp_ms=-1)
    moved = await handlers("ResetConsumerOffsets", reset)
    assert [moved_to.queue_offset for moved_to in moved.offsets] == [2, 0, 0, 0]
    stats = await handlers("GetConsumeStats", offset_pb2.GetConsumeStatsRequest(consumer_group="g"))
    read = next(queue for queue in stats.queues if queue.topic == "t" and queue.queue_id == 0)
    assert (read.consumer_offset, read.max_offset) == (2, 2)
    unread = next(queue for queue in stats.queues if queue.topic == "%RETRY%g")
    assert not unread.HasField("consumer_offset")


async def test_offsets_beyond_the_end_are_named_and_not_stored(handlers: Handlers) -> None:
    await handlers.harness.group("g")
    await handlers.harness.send("t", b"a", b"b")
    beyond = offset_pb2.QueueOffset(topic="t", queue_id=1, queue_offset=1)
    update = offset_pb2.UpdateConsumerOffsetsRequest(
        consumer_group="g", offsets=[offset_pb2.QueueOffset(topic="t", queue_offset=2), beyond]
    )
    assert list((await handlers("UpdateConsumerOffsets", update)).beyond_end) == [beyond]
    query = offset_pb2.QueryConsumerOffsetsRequest(consumer_group="g")
    stored = (await handlers("QueryConsumerOffsets", query)).offsets
    assert [(each.queue_id, each.queue_offset) for each in stored] == [(0, 2)]


async def test_a_reset_without_a_target_is_refused(handlers: Handlers) -> None:
    await handlers.harness.group("g")
    await handlers.harness.send("t", b"x")
    request = offset_pb2.ResetConsumerOffsetsRequest(consumer_group="g", topic="t")
    assert (await handlers.refused("ResetConsumerOffsets", request)).code is Code.INVALID_PARAMETER


async def test_a_reset_to_offset_0_is_not_absent(handlers: Handlers) -> None:
    await handlers.harness.group("g")
    await handlers.harness.send("t", b"x")
    request = offset_pb2.ResetConsumerOffsetsRequest(
        consumer_group="g", topic="t", queue_offset=0, queue_ids=[0]
    )
    moved = await handlers("ResetConsumerOffsets", request)
    assert [(moved_to.queue_id, moved_to.queue_offset) for moved_to in moved.offsets] == [(0, 0)]


async def test_query_says_who_has_a_queue_until_that_releases_it(handlers: Handlers) -> None:
    await handlers.harness.group("g")
    await handlers.harness.send("t", b"x")
    for client_id in ("a", "b"):
        beat = client_pb2.HeartbeatRequest(client_id=client_id)
        beat.consumers.add(consumer_group="g")
        await handlers("Heartbeat", beat)
    held = []
    for client_id in ("a", "b"):
        taking = offset_pb2.QueryConsumerOffsetsRequest(
            consumer_group="g", topic="t", client_id=client_id, queue_ids=[0, 1]
        )
        answer = await handlers("QueryConsumerOffsets", taking)
        held.append([(queue.queue_id, queue.client_id) for queue in answer.held])
    assert held == [[], [(0, "a"), (1, "a")]]
    release = offset_pb2.UpdateConsumerOffsetsRequest(consumer_group="g", client_id="a")
    release.offsets.add(topic="t", queue_id=0, queue_offset=1)
    release.released.add(topic="t", queue_id=0)
    await handlers("UpdateConsumerOffsets", release)
    answer = await handlers("QueryConsumerOffsets", taking)
    assert [queue.queue_id for queue in answer.held] == [1]
    assert [stored.queue_offset for stored in answer.offsets] == [1]
