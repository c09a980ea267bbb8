"""Jobs over dead letters: each letter once, and a state for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from aerobee_broker.delivery.letters import journal_records
from aerobee_broker.delivery.letters.journal_records import Action, JobStarted, JobState, Progress
from aerobee_broker.delivery.letters.letter_jobs import READ_SLICE
from aerobee_broker.delivery.letters.states import LetterState
from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.errors import DiskFull, FlushTimeout, LetterJobRefused
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.retention.topic_times import TopicTime
from aerobee_wire import properties as props
from aerobee_wire import redrive as rules
from aerobee_wire import topics as names
from aerobee_wire.record import iter_records
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness, InlineWorker
from support.broker.letters import (
    DLQ,
    GROUP,
    ORIGIN,
    fill,
    finished,
    letter,
    make_topics,
    run,
    sent_ids,
    spec,
    states,
)
from support.broker.pop_restarts import failing_disk
from support.codes import raises_code


async def all_sent_ids(harness: BrokerHarness) -> Counter[str]:
    found: Counter[str] = Counter()
    for queue_id in harness.store.queues(ORIGIN):
        offset = 0
        while offset < harness.store.max_offset(ORIGIN, queue_id):
            page = harness.store.read(ORIGIN, queue_id, offset, max_messages=1_024)
            found.update(record.unique_message_id for record in iter_records(page.records))
            offset = page.next_begin_offset
    return found


RETRY = names.retry_topic(GROUP)
REDRIVEN, DISMISSED = LetterState.REDRIVEN, LetterState.DISMISSED


async def test_redrive_sends_each_letter_once(harness: BrokerHarness) -> None:
    await fill(harness, 3_000)
    job = await run(harness, "a", spec())
    assert (job.state, job.sent, job.failed, job.already) == (JobState.DONE, 3_000, 0, 0)
    assert (job.total, job.examined, job.topics) == (3_000, 3_000, {ORIGIN})
    found = await sent_ids(harness)
    assert found.total() == len(found) == 2_000  # `read` returns 1,000 of each queue
    again = await run(harness, "b", spec())
    assert (again.sent, again.already) == (0, 3_000)


async def test_redriven_message_keeps_content_and_loses_failures(harness: BrokerHarness) -> None:
    await fill(harness, 1)
    await run(harness, "a", spec(target="retry"))
    record = (await harness.read(RETRY))[0]
    properties = record.properties
    assert record.body.rstrip() == b"0" and record.reconsume_times == 0
    assert properties["colour"] == "red" and properties[props.UNIQUE_KEY] == "ID0"
    assert properties[props.REDRIVE_TIMES] == "1" and properties[props.RETRY_TOPIC] == ORIGIN
    assert not properties.keys() & {props.DLQ_REASON, props.DLQ_ORIGIN_TOPIC}


async def test_same_job_id_starts_nothing(harness: BrokerHarness) -> None:
    await fill(harness, 5)
    first, started = await harness.broker.letters.start_job("a", spec())
    again, started_again = await harness.broker.letters.start_job("a", spec())
    assert (started, started_again) == (True, False) and again is first
    await finished(harness, "a")
    assert (await harness.broker.letters.start_job("a", spec()))[1] is False
    assert (await sent_ids(harness)).total() == 5


async def test_one_job_of_a_group_runs_at_a_time(harness: BrokerHarness) -> None:
    await fill(harness, 10)
    await harness.broker.letters.start_job("a", spec(rate=1))
    with raises_code(Code.ILLEGAL_OPERATION):
        await harness.broker.letters.start_job("b", spec())


@pytest.mark.parametrize("second_id", ["a", "b"])
async def test_overlapping_starts_begin_one_job(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, second_id: str
) -> None:
    async def spread_slowly(harness: BrokerHarness, config: TopicConfig) -> None:
        await asyncio.sleep(1)

    monkeypatch.setattr(BrokerHarness, "_spread", spread_slowly)
    harness = await begin()
    await fill(harness, 10)
    letters, given = harness.broker.letters, spec(target="topic:fresh", rate=8)
    outcomes = await asyncio.gather(
        letters.start_job("a", given), letters.start_job(second_id, given), return_exceptions=True
    )
    if second_id == "a":
        job = letters.get("a")
        assert sorted(outcomes, key=str) == sorted([(job, True), (job, False)], key=str)
    else:
        assert [isinstance(each, LetterJobRefused) for each in outcomes].count(True) == 1
    (job,) = letters.jobs()
    await finished(harness, job.job_id)
    assert (await sent_ids(harness, "fresh")).total() == 10


async def test_repeated_start_waits_until_the_start_is_durable(harness: BrokerHarness) -> None:
    await fill(harness, 5)
    harness.flusher.hold()
    first = asyncio.create_task(harness.broker.letters.start_job("a", spec()))
    second = asyncio.create_task(harness.broker.letters.start_job("a", spec()))
    await asyncio.sleep(1)
    assert not first.done() and not second.done()
    harness.flusher.let_go()
    assert [(await first)[1], (await second)[1]] == [True, False]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_abandoned_start_runs_when_it_is_durable(
    harness: BrokerHarness, *, is_cancelled: bool
) -> None:
    await fill(harness, 5)
    harness.flusher.hold()
    start = asyncio.create_task(harness.broker.letters.start_job("a", spec()))
    await asyncio.sleep(1)
    if is_cancelled:
        start.cancel()
    else:
        with pytest.raises(FlushTimeout):
            await start
    await asyncio.sleep(10)
    appended = [harness.store.next_offset(ORIGIN, queue_id) for queue_id in (0, 1)]
    assert appended == [0, 0], "a job without a durable start sends nothing"
    harness.flusher.let_go()
    assert (await finished(harness, "a")).sent == 5


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_start_that_is_rolled_back_leaves_no_job(begin: Begin, *, is_cancelled: bool) -> None:
    harness = await begin()
    await fill(harness, 5)
    letters = harness.broker.letters
    harness.flusher.hold()
    with failing_disk(harness, DiskFull("injected")):
        start = asyncio.create_task(letters.start_job("a", spec()))
        await asyncio.sleep(6)  # longer than syncFlushTimeout
        assert isinstance(start.exception(), FlushTimeout) and letters.get("a").is_running
        if is_cancelled:
            cancellation = asyncio.create_task(letters.cancel("a"))
            await asyncio.sleep(0.1)
            harness.flusher.let_go()
            with pytest.raises(DiskFull):
                await cancellation
        harness.flusher.let_go()
        await asyncio.sleep(0.1)
    assert not letters.jobs()
    assert (await run(harness, "a", spec())).sent == 5
    harness = await begin()
    assert harness.broker.letters.get("a").sent == 5
    assert (await sent_ids(harness)).total() == 5


async def test_correction_is_logged_again_after_a_rollback(begin: Begin) -> None:
    """A crash left a record of progress without its last messages."""
    harness = await begin()
    await fill(harness, 4)
    records = (
        JobStarted("a", spec(), {0: (0, 4)}),
        Progress("a", 0, 4, [(0, 4)], {(ORIGIN, 0): (0, 4)}),
    )
    await harness.broker.log.put_accepted([journal_records.encode(each, 0) for each in records])
    flusher = InlineWorker()
    flusher.hold()
    harness = await begin(flusher=flusher)
    assert harness.broker.letters.get("a").is_running
    with failing_disk(harness, DiskFull("injected")):
        flusher.let_go()
        await asyncio.sleep(0.1)
    assert (await finished(harness, "a")).sent == 4
    harness = await begin()
    assert harness.broker.letters.get("a").sent == 4, "the journal has the correction"
    assert (await sent_ids(harness)).total() == 4


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ({"tag": "tag1"}, [1, 3, 5]),
        ({"reason": "Timeout"}, [0, 3]),
        ({"ids": frozenset({"ID2", "ID4"})}, [2, 4]),
        ({"listed": {0: [(1, 3), (5, 6)]}}, [1, 2, 5]),
        ({"limit": 2}, [0, 1]),
        ({"tag": "tag1", "limit": 2}, [1, 3]),
        ({"since_ms": 1 << 60}, []),
        ({"until_ms": 1}, []),
    ],
)
async def test_selection_and_limit(
    harness: BrokerHarness, given: dict[str, Any], numbers: list[int]
) -> None:
    await fill(harness, 6)
    limit = given.get("limit")
    preview = await harness.broker.letters.preview(spec(**given))
    assert limit or preview.would_send == len(numbers)
    await run(harness, "a", spec(**given))
    assert sorted(await sent_ids(harness)) == [f"ID{number}" for number in numbers]
    assert await states(harness) == dict.fromkeys(numbers, REDRIVEN)


async def test_letters_without_a_reason_or_tag_are_selected(harness: BrokerHarness) -> None:
    make_topics(harness)
    await harness.broker.log.put_accepted(
        [letter(0), letter(1, DLQ_REASON=""), letter(2, TAGS="", DLQ_REASON=""), letter(3, TAGS="")]
    )
    none = rules.WITHOUT
    for given, count in (
        (spec(reason=none), 2),
        (spec(tag=none), 2),
        (spec(tag=none, reason=none), 1),
    ):
        assert (await harness.broker.letters.preview(given)).would_send == count
    await run(harness, "a", spec(reason=rules.WITHOUT))
    assert sorted(await sent_ids(harness)) == ["ID1", "ID2"]


async def test_job_ends_at_the_letters_of_its_start(harness: BrokerHarness) -> None:
    await fill(harness, 10)
    await harness.broker.letters.start_job("a", spec(rate=8))
    await harness.broker.log.put_accepted([letter(10)])
    job = await finished(harness, "a")
    assert (job.sent, job.total) == (10, 10)


async def test_rate_spreads_sends(harness: BrokerHarness) -> None:
    await fill(harness, 40)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await run(harness, "a", spec(rate=10))
    assert 3.5 <= loop.time() - began_s <= 4.5


async def test_message_of_two_letters_is_sent_once(harness: BrokerHarness) -> None:
    make_topics(harness)
    await harness.broker.log.put_accepted([letter(1), letter(2), letter(1)])
    preview = await harness.broker.letters.preview(spec())
    assert (preview.would_send, preview.duplicates) == (2, 1)
    job = await run(harness, "a", spec())
    assert (job.sent, job.duplicates) == (2, 1)
    assert await sent_ids(harness) == {"ID1": 1, "ID2": 1}
    assert (await run(harness, "b", spec())).already == 3


async def test_again_sends_letters_that_were_sent(harness: BrokerHarness) -> None:
    await fill(harness, 4)
    await run(harness, "a", spec())
    preview = await harness.broker.letters.preview(spec())
    assert (preview.selected, preview.would_send, preview.already_sent) == (4, 0, 4)
    job = await run(harness, "b", spec(again=True))
    assert (job.sent, job.already) == (4, 0)


async def test_dismissal_hides_letters_and_sends_nothing(harness: BrokerHarness) -> None:
    await fill(harness, 4)
    job = await run(harness, "a", spec(Action.DISMISS, tag="tag0"))
    assert (job.sent, job.topics) == (2, set())
    assert await states(harness) == {0: DISMISSED, 2: DISMISSED}
    preview = await harness.broker.letters.preview(spec())
    assert (preview.would_send, preview.already_dismissed) == (2, 2)
    assert (await run(harness, "b", spec())).sent == 2
    assert sorted(await sent_ids(harness)) == ["ID1", "ID3"]


async def test_failures_are_listed_and_stay_open(harness: BrokerHarness) -> None:
    make_topics(harness)
    lost = letter(2, DLQ_ORIGIN_TOPIC="gone")
    await harness.broker.log.put_accepted([letter(1), lost, letter(3)])
    preview = await harness.broker.letters.preview(spec())
    assert preview.would_send == 2 and preview.failures.total() == 1
    job = await run(harness, "a", spec())
    assert (job.state, job.sent, job.failed) == (JobState.DONE, 2, 1)
    found, more = await harness.broker.letters.failures("a", 0, -1, 10)
    assert not more and [entry.queue_offset for _, entry in found] == [1]
    assert "gone" in found[0][1].mark.error and found[0][1].state is LetterState.OPEN
    assert (await run(harness, "b", spec(target="retry"))).sent == 1


async def test_cancelled_job_sends_no_more(harness: BrokerHarness) -> None:
    await fill(harness, 100)
    await harness.broker.letters.start_job("a", spec(rate=8))
    await asyncio.sleep(2)
    job, cancelled = await harness.broker.letters.cancel("a")
    sent = job.sent
    assert cancelled and job.state is JobState.CANCELLED and 0 < sent < 100
    await asyncio.sleep(60)
    assert job.sent == sent == (await sent_ids(harness)).total()
    assert (await harness.broker.letters.cancel("a"))[1] is False
    assert (await run(harness, "b", spec())).sent == 100 - sent


async def test_job_and_states_survive_restart(begin: Begin) -> None:
    harness = await begin()
    await fill(harness, 100)
    await harness.broker.letters.start_job("a", spec(rate=8))
    await asyncio.sleep(2)
    before = harness.broker.letters.get("a").sent
    assert 0 < before < 100
    harness = await begin()
    job = harness.broker.letters.get("a")
    assert job.is_running and before <= job.sent < 100 and job.spec == spec(rate=8)
    await finished(harness, "a")
    assert (job.sent, job.duplicates) == (100, 0)
    assert len(await sent_ids(harness)) == (await sent_ids(harness)).total() == 100
    harness = await begin()
    assert harness.broker.letters.get("a").state is JobState.DONE
    assert await states(harness) == dict.fromkeys(range(100), REDRIVEN)


async def test_resumed_job_knows_messages_that_it_sent(begin: Begin) -> None:
    harness = await begin()
    make_topics(harness)
    await harness.broker.log.put_accepted([letter(n % 30) for n in range(60)])
    await harness.broker.letters.start_job("a", spec(rate=40))
    await asyncio.sleep(0.3)
    assert harness.broker.letters.get("a").sent < 30
    harness = await begin()
    job = await finished(harness, "a")
    assert (job.sent, job.duplicates) == (30, 30)


async def test_job_waits_while_the_log_fails(harness: BrokerHarness) -> None:
    await fill(harness, 10)
    await harness.broker.letters.start_job("a", spec(rate=8))
    with failing_disk(harness, DiskFull("injected")):
        await asyncio.sleep(5)
        assert "injected" in harness.broker.letters.get("a").waits_for
    job = await finished(harness, "a")
    assert (job.sent, job.waits_for) == (10, "")
    assert (await sent_ids(harness)).total() == 10


async def test_job_without_rate_waits_while_the_log_fails(harness: BrokerHarness) -> None:
    """It has examined letters behind those whose append fails."""
    await fill(harness, 3_000)
    failures = []
    await harness.broker.letters.start_job("a", spec())
    with failing_disk(harness, DiskFull("injected")):
        for _ in range(5):
            await asyncio.sleep(1)
            failures.append(harness.broker.letters.get("a").waits_for)
    assert all("injected" in each for each in failures)
    job = await finished(harness, "a")
    assert (job.sent, job.duplicates, job.waits_for) == (3_000, 0, "")
    assert await all_sent_ids(harness) == Counter({f"ID{number}": 1 for number in range(3_000)})


async def test_job_has_one_append_that_is_not_durable(harness: BrokerHarness) -> None:
    await fill(harness, 3_000)
    harness.flusher.hold()
    starting = asyncio.create_task(harness.broker.letters.start_job("a", spec()))
    await asyncio.sleep(0)
    harness.flusher.let_go()
    await starting
    harness.flusher.hold()
    end = harness.store.end_offset
    for _ in range(200):
        await asyncio.sleep(0)
    first, job = harness.store.end_offset, harness.broker.letters.get("a")
    assert first > end and (job.sent, job.examined) == (0, 0)
    await asyncio.sleep(1)
    assert harness.store.end_offset == first
    harness.flusher.let_go()
    assert (await finished(harness, "a")).sent == 3_000


async def test_cancellation_that_fails_leaves_the_job_running(harness: BrokerHarness) -> None:
    await fill(harness, 10)
    await harness.broker.letters.start_job("a", spec(rate=1))
    with failing_disk(harness, DiskFull("injected")), pytest.raises(DiskFull):
        await harness.broker.letters.cancel("a")
    assert (await finished(harness, "a")).sent == 10


async def test_slow_cancellation_ends_the_job(harness: BrokerHarness) -> None:
    """The flush of the end takes longer than syncFlushTimeout."""
    await fill(harness, 100)
    await harness.broker.letters.start_job("a", spec(rate=8))
    await asyncio.sleep(2)
    harness.flusher.hold()
    with pytest.raises(FlushTimeout):
        await harness.broker.letters.cancel("a")
    harness.flusher.let_go()
    job = await finished(harness, "a")
    sent = (await sent_ids(harness)).total()
    assert job.state is JobState.CANCELLED and sent == job.sent < 100
    await asyncio.sleep(60)
    assert (await sent_ids(harness)).total() == sent


async def test_deletion_of_the_dead_letter_topic_ends_the_job(begin: Begin) -> None:
    harness = await begin()
    await fill(harness, 10)
    await harness.broker.letters.start_job("a", spec(rate=1))
    await asyncio.sleep(1.5)
    await harness.broker.administration.delete_topic(DLQ)
    job = harness.broker.letters.get("a")
    assert job.state is JobState.CANCELLED
    sent = (await sent_ids(harness)).total()
    await fill(harness, 3)
    assert await states(harness) == {}
    harness = await begin()
    assert harness.broker.letters.get("a").state is JobState.CANCELLED
    assert await states(harness) == {}
    assert (await run(harness, "b", spec())).sent == 3
    assert (await sent_ids(harness)).total() == sent + 3


async def test_letter_is_consumed_when_the_group_is_behind_it(harness: BrokerHarness) -> None:
    await fill(harness, 3)
    await run(harness, "a", spec(target="retry"))
    assert await states(harness) == dict.fromkeys(range(3), REDRIVEN)
    harness.tables.offsets.commit(GROUP, RETRY, 0, 2)
    assert await states(harness) == {
        0: LetterState.CONSUMED,
        1: LetterState.CONSUMED,
        2: REDRIVEN,
    }


async def test_letter_whose_retry_waits_is_not_consumed(harness: BrokerHarness) -> None:
    """A consumer that sends a message back also commits its offset."""
    await fill(harness, 1)
    await run(harness, "a", spec(target="retry"))
    copy = (await harness.read(RETRY))[0]
    await harness.broker.sending.send_back.send_back(GROUP, [Entry(copy.physical_offset)])
    harness.tables.offsets.commit(GROUP, RETRY, 0, 1)
    assert await states(harness) == {0: REDRIVEN}


async def test_letter_is_dead_again_when_its_message_is(harness: BrokerHarness) -> None:
    await fill(harness, 1)
    await run(harness, "a", spec(target="retry"))
    copy = (await harness.read(RETRY))[0]
    dead = Entry(copy.physical_offset, delay_level=-1)
    await harness.broker.sending.send_back.send_back(GROUP, [dead])
    assert await states(harness) == {0: LetterState.DEAD_AGAIN}
    job = await run(harness, "b", spec())
    assert (job.sent, job.already) == (1, 1), "the new letter is open"


@pytest.mark.parametrize(
    ("job_id", "given", "code"),
    [
        ("", {}, Code.INVALID_PARAMETER),
        ("a b", {}, Code.INVALID_PARAMETER),
        ("a", {"target": "nowhere"}, Code.INVALID_PARAMETER),
        ("a", {"limit": -1}, Code.INVALID_PARAMETER),
        ("a", {"rate": float("nan")}, Code.INVALID_PARAMETER),
    ],
)
async def test_invalid_job_is_refused(
    harness: BrokerHarness, job_id: str, given: dict[str, Any], code: Code
) -> None:
    await fill(harness, 1)
    with raises_code(code):
        await harness.broker.letters.start_job(job_id, spec(**given))


async def test_target_topic_is_created_as_by_a_send(begin: Begin) -> None:
    harness = await begin()
    await fill(harness, 2)
    assert (await harness.broker.letters.preview(spec(target="topic:fresh"))).would_send == 2
    assert "fresh" not in harness.tables.topics
    assert (await run(harness, "a", spec(target="topic:fresh"))).topics == {"fresh"}
    harness = await begin(autoCreateTopicEnable=False)
    preview = await harness.broker.letters.preview(spec(target="topic:other", again=True))
    assert (preview.would_send, preview.failures.total()) == (0, 2)
    preview = await harness.broker.letters.preview(spec(target="topic:other"))
    assert (preview.would_send, preview.already_sent) == (0, 2)
    assert list(preview.failures.values()) == [0], "the job does not start, so this is an error"
    with raises_code(Code.TOPIC_NOT_EXIST):
        await harness.broker.letters.start_job("b", spec(target="topic:other"))


async def test_message_group_returns_to_the_queue_of_its_origin(harness: BrokerHarness) -> None:
    make_topics(harness)
    for queue_id in (0, 1):
        sent = {props.SHARDING_KEY: "g", props.UNIQUE_KEY: f"Q{queue_id}"}
        (stored,) = await harness.send(ORIGIN, b"x", properties=sent, queue_id=queue_id)
        dead = Entry(stored.physical_offset, delay_level=-1)
        await harness.broker.sending.send_back.send_back(GROUP, [dead])
    await run(harness, "a", spec())
    for queue_id in (0, 1):
        stored_ids = [record.unique_message_id for record in await harness.read(ORIGIN, queue_id)]
        assert stored_ids == [f"Q{queue_id}"] * 2


async def test_listing_is_correct_while_retention_deletes_letters(harness: BrokerHarness) -> None:
    await fill(harness, 100)
    await run(harness, "a", spec(listed={0: [(0, 60)]}))
    await run(harness, "b", spec(Action.DISMISS))
    listing = asyncio.create_task(states(harness))
    await asyncio.sleep(0)
    harness.broker.letters.table.states.trim(GROUP, 0, 50)
    assert not listing.done()
    expected = dict.fromkeys(range(60), REDRIVEN) | dict.fromkeys(range(60, 100), DISMISSED)
    assert await listing == expected


async def test_listing_of_failures_lets_other_tasks_run(harness: BrokerHarness) -> None:
    await fill(harness, 3_000)
    await run(harness, "a", spec(listed={0: [(0, 3_000)]}))
    listing = asyncio.create_task(harness.broker.letters.failures("a", 0, -1, 10))
    await asyncio.sleep(0)
    assert not listing.done()
    assert await listing == ([], False)


async def test_start_after_an_incomplete_append_yields(begin: Begin) -> None:
    harness = await begin()
    await fill(harness, 200)
    records = (
        JobStarted("a", spec(), {0: (0, 200)}),
        Progress("a", 0, 200, [(0, 200)], {(ORIGIN, 0): (0, 200)}),
    )
    await harness.broker.log.put_accepted([journal_records.encode(each, 0) for each in records])
    assert len(list(harness.broker.letters.restore_slices())) == 200 // READ_SLICE
    assert harness.broker.letters.get("a").sent == 0


async def test_states_take_no_memory_beyond_retention(harness: BrokerHarness) -> None:
    await fill(harness, 10)
    await run(harness, "a", spec())
    table = harness.broker.letters.table
    await harness.broker.letters.maintain()
    assert table.jobs and table.states.queues()
    table.collect(harness.store.end_offset)  # the log was deleted up to its end
    assert not table.jobs
    table.states.trim(GROUP, 0, 10)
    assert not table.states.queues()
    assert not table.states._numbers


async def test_letter_that_expires_during_a_job_is_not_counted_as_handled(
    harness: BrokerHarness,
) -> None:
    await fill(harness, 2)
    await asyncio.sleep(10)
    expired_before_ms = harness.clock.now_ms()
    await harness.broker.log.put_accepted([letter(2), letter(3), letter(4)])
    await run(harness, "a", spec(limit=4))
    await harness.broker.letters.start_job("b", spec())
    times = harness.store.topic_times
    times.use({DLQ: TopicTime(expired_before_ms=expired_before_ms)})
    times.expire_all(harness.clock.now_ms())
    job = await finished(harness, "b")
    assert (job.total, job.already, job.sent) == (5, 2, 1)


async def test_no_message_of_a_job_follows_its_end_in_the_log(harness: BrokerHarness) -> None:
    """Cancel at each turn of the loop around the begin of an append."""
    await fill(harness, 3_000)
    for turns in range(40):  # a job appends every 12 turns
        job_id = f"job{turns}"
        await harness.broker.letters.start_job(job_id, spec(again=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancellation = asyncio.create_task(harness.broker.letters.cancel(job_id))
        await asyncio.sleep(0)
        end = harness.store.end_offset
        await cancellation
        await asyncio.sleep(10)
        assert harness.store.end_offset == end, f"cancelled after {turns} turns"
