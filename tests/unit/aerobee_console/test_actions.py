"""The changes: consequences first, confirmed by a name, and rejected if what was seen changed."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import timedelta
from typing import Any, Self
from urllib.parse import urlencode

import pytest

from aerobee_client import AsyncProducer, Message
from aerobee_client.admin.descriptions import PolicyDescription, ReplicaDescription
from aerobee_console.reading.effects import losses, seen_of
from aerobee_console.reading.source import Silent
from aerobee_console.web import actions
from aerobee_console.web.actions import ACTIONS
from aerobee_console.web.api import PREFIX
from aerobee_console.web.fields import Fields
from aerobee_console.web.forms import CONFIRM
from aerobee_wire.status import Code, MqError
from support.console.servers import Users, configured
from support.console.visitor import Response, Visitor


def seen(form: Response) -> str:
    found = re.search(r'name="seen" value="(\w+)"', form.text)
    assert found
    return found[1]


def topics(visitor: Visitor) -> set[str]:
    return {
        config.topic for broker in visitor.brokers.values() for config in broker.tables.topics.all()
    }


@pytest.mark.parametrize(
    "address",
    [
        "/new-topic",
        "/topics/orders/change",
        "/topics/orders/delete",
        "/topics/orders/send",
        "/new-group",
        "/groups/billing/change",
        "/groups/billing/delete",
        "/groups/billing/reset",
        "/groups/billing/reset?topic=orders&to=earliest",
        "/groups/billing/skip",
        "/brokers/a/drain",
    ],
)
async def test_every_change_has_a_form_and_refuses_foreign_requests(
    address: str, visitor: Visitor
) -> None:
    assert (await visitor.get(address)).status == 200
    if "billing/reset" in address and "?" not in address:
        return
    path = address.partition("?")[0]
    assert (await visitor.post(path, origin="http://evil.example")).status == 403
    assert (await visitor.post(path, origin=None)).status == 403
    assert (await visitor.post(path, token="wrong")).status == 403


async def test_a_topic_is_created_on_every_broker(visitor: Visitor) -> None:
    fields = {"topic": "invoices", "queues": "3", "type": "fifo"}
    response = await visitor.post("/new-topic", fields)
    assert response.status == 200 and "a: created" in response.words
    for broker in visitor.brokers.values():
        config = broker.tables.topics.get("invoices")
        assert config is not None and config.write_queue_count == 3
        assert config.attributes["message.type"] == "FIFO"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"topic": "", "queues": "3"}, "topic"),
        ({"topic": "x", "queues": "many"}, "queues"),
        ({"topic": "x", "type": "odd"}, "type"),
    ],
)
async def test_a_bad_field_of_a_form_is_named_and_nothing_is_changed(
    fields: dict[str, str], field: str, visitor: Visitor
) -> None:
    before = topics(visitor)
    response = await visitor.post("/new-topic", fields)
    assert response.status == 400
    assert f'href="#field-{field}"' in response.text
    assert topics(visitor) == before


async def test_a_creation_at_a_silent_broker_is_not_green(visitor: Visitor) -> None:
    visitor.transport.away = {"b"}
    response = await visitor.post("/new-topic", {"topic": "invoices"})
    assert response.status == 200 and "state good" not in response.text
    assert "a: created" in response.words and "not changed: no answer from b" in response.words
    visitor.transport.away = set()
    again = await visitor.post("/new-topic", {"topic": "invoices"})
    assert "state good" in again.text and "b: created" in again.words


@pytest.mark.parametrize("path", ["/new-topic", "/new-group", "/groups/billing/pause"])
async def test_a_change_names_a_broker_that_is_not_registered_any_more(
    path: str, visitor: Visitor
) -> None:
    visitor.transport.gone = visitor.transport.unregistered = {"b"}
    fields = {"/new-topic": {"topic": "x"}, "/new-group": {"group": "x"}}
    response = await visitor.post(path, fields.get(path, {"consume": "no"}))
    assert "Done in part" in response.words
    assert "not changed: b is not registered any more" in response.words
    assert "when b answers again, repeat the change" in response.words


@pytest.mark.parametrize(
    ("path", "setting", "value"),
    [
        ("/groups/billing/change", "max_attempts", "5"),
        ("/topics/orders/change", "read_queues", "6"),
    ],
)
async def test_a_change_of_settings_is_completed_by_repeating_it(
    path: str, setting: str, value: str, visitor: Visitor
) -> None:
    before = shown(await visitor.get(path))[setting]
    visitor.transport.gone = visitor.transport.unregistered = {"b"}
    form = await visitor.get(path)
    assert "The settings at b are unknown" in form.words
    done = await visitor.post(path, {**shown(form), setting: value})
    assert "Done in part" in done.words and "not changed: b is not" in done.words
    visitor.transport.gone = visitor.transport.unregistered = set()
    form = await visitor.get(path)
    assert f"{value} at a, {before} at b; empty leaves them" in form.words
    assert "had these settings already" in (await visitor.post(path, shown(form))).words
    done = await visitor.post(path, {**shown(form), setting: value})
    assert "state good" in done.text and "b: " in done.words.replace("queue_count", "queues")
    assert shown(await visitor.get(path))[setting] == value


async def test_a_topic_is_deleted_only_after_its_name_was_typed(visitor: Visitor) -> None:
    await visitor.brokers["a"].send("orders", b"1", b"2")
    form = await visitor.get("/topics/orders/delete")
    assert "orders has 2 messages in 4 queues" in form.words
    wrong = await visitor.post("/topics/orders/delete", {"seen": seen(form), "confirm": "order"})
    assert wrong.status == 400 and "orders" in topics(visitor)
    fields = {"seen": seen(form), "confirm": "orders"}
    assert (await visitor.post("/topics/orders/delete", fields)).status == 200
    assert "orders" not in topics(visitor)


async def test_a_deletion_is_rejected_if_what_was_seen_has_changed(visitor: Visitor) -> None:
    form = await visitor.get("/topics/orders/delete")
    visitor.topic("orders", queues=3)
    fields = {"seen": seen(form), "confirm": "orders"}
    response = await visitor.post("/topics/orders/delete", fields)
    assert response.status == 409 and "orders" in topics(visitor)
    assert "orders has 0 messages in 6 queues" in response.words


async def test_a_deletion_is_rejected_while_a_broker_is_silent(visitor: Visitor) -> None:
    form = await visitor.get("/topics/orders/delete")
    visitor.transport.away = {"b"}
    fields = {"seen": seen(form), "confirm": "orders"}
    response = await visitor.post("/topics/orders/delete", fields)
    assert response.status == 409
    visitor.transport.away = set()
    assert "orders" in topics(visitor)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("/topics/orders/delete", "orders has at least 2 messages in at least 2 queues"),
        ("/groups/billing/delete", "billing has an unknown number of members"),
        ("/groups/billing/pause", "an unknown number of messages not consumed"),
        (
            "/groups/billing/reset?topic=orders&to=latest",
            "billing has an unknown number of members",
        ),
        ("/dead-letters/billing/redrive?target=origin", "an unknown number of letters of billing"),
    ],
)
async def test_consequences_without_one_broker_are_no_exact_numbers(
    address: str, text: str, visitor: Visitor
) -> None:
    await visitor.brokers["a"].send("orders", b"1", b"2")
    for name in "ab":
        await visitor.brokers[name].send("%DLQ%billing", b"1")
    visitor.transport.away = {"b"}
    assert text in (await visitor.get(address)).words


async def test_a_reset_shows_each_queue_also_of_a_group_without_members(
    visitor: Visitor,
) -> None:
    await visitor.brokers["a"].send("orders", b"1", b"2", b"3")
    address = "/groups/billing/reset?topic=orders&to=latest"
    form = await visitor.get(address)
    assert "billing has 0 members" in form.words
    fields = {"topic": "orders", "to": "latest", "seen": seen(form), "confirm": "billing"}
    response = await visitor.post("/groups/billing/reset", fields)
    assert response.status == 200 and "a, queue 0: offset 3" in response.words
    again = await visitor.get("/groups/billing/reset?topic=orders&to=earliest")
    assert "the group consumes 3 messages again" in again.words
    assert "a/0 3 0 3" in again.words


async def test_a_reset_to_an_unknown_place_names_the_field(visitor: Visitor) -> None:
    response = await visitor.get("/groups/billing/reset?topic=orders&to=soon")
    assert response.status == 400 and "to : 'soon': give earliest" in response.words
    assert re.search(r'name="to"[^>]* value="soon"[^>]* aria-invalid="true"', response.text)
    assert re.search(r'name="topic"[^>]* value="orders"', response.text)


async def test_a_group_is_created_changed_and_deleted(visitor: Visitor) -> None:
    fields = {"group": "shipping", "max_attempts": "5", "retry_delays": "1s,5s", "order": "on"}
    assert (await visitor.post("/new-group", fields)).status == 200
    changed = await visitor.post("/groups/shipping/change", {"consume": "false"})
    assert "a: consume true → false" in changed.words
    assert "Paused" in (await visitor.get("/groups/shipping")).words
    form = await visitor.get("/groups/shipping/delete")
    fields = {"seen": seen(form), "confirm": "shipping"}
    assert (await visitor.post("/groups/shipping/delete", fields)).status == 200
    assert (await visitor.get("/groups/shipping")).status == 404


async def test_a_redrive_shows_reasons_and_starts_a_job_on_each_broker_with_letters(
    visitor: Visitor,
) -> None:
    for reason in ("TimeoutError", "ValueError"):
        named = {"DLQ_REASON": reason, "RETRY_TOPIC": "orders", "UNIQ_KEY": f"0A{reason}"}
        await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=named)
    path = "/dead-letters/billing/redrive"
    form = await visitor.get(f"{path}?target=origin&reason=TimeoutError&rate=50")
    assert "1 letter of billing would be sent to their origin topics" in form.words
    assert "TimeoutError 1" in form.words and "ValueError" not in form.words
    job = re.search(r'name="job_id" value="([\w-]+)"', form.text)
    assert job
    fields = {"target": "origin", "reason": "TimeoutError", "rate": "50", "job_id": job[1]}
    fields |= {"seen": seen(form), "confirm": "billing"}
    done = await visitor.post(path, fields)
    assert done.status == 200 and "a: running" in done.words and "b: running" not in done.words
    assert job[1] in (await visitor.get("/dead-letters/billing")).words


async def test_letters_without_a_reason_are_redriven_from_their_page(visitor: Visitor) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=letter(1))
    named = {name: value for name, value in letter(2).items() if name != "DLQ_REASON"}
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=named)
    page = await visitor.get("/dead-letters/billing?reason=")
    for change in ("redrive", "purge"):
        assert f"/dead-letters/billing/{change}?no_reason=yes" in page.text
    path = "/dead-letters/billing/redrive"
    given = {"target": "origin", "no_reason": "yes"}
    form = await visitor.get(f"{path}?{urlencode(given)}")
    assert "1 letter of billing would be sent" in form.words and "Only without a reason yes" in (
        form.words
    )
    sent = {**given, "job_id": "job-1", "seen": seen(form), "confirm": "billing"}
    assert (await visitor.post(path, sent)).status == 200
    job = await visitor.get("/redrives/job-1")
    assert "Without a reason yes" in job.words and "\x01" not in job.text
    both = await visitor.get(f"{path}?{urlencode({**given, 'reason': 'TimeoutError'})}")
    assert both.status == 400 and 'href="#field-no_reason"' in both.text


async def redriven(visitor: Visitor, target: str, **fields: str) -> Response:
    """The answer to a redrive with the fields of its form, which was opened before."""
    path = "/dead-letters/billing/redrive"
    given = {"target": target, **fields}
    form = await visitor.get(f"{path}?{urlencode(given)}")
    assert form.status == 200
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=letter(9))
    sent = {**given, "job_id": "job-1", "seen": seen(form), "confirm": "billing"}
    return await visitor.post(path, sent)


def letter(number: int) -> dict[str, str]:
    return {"RETRY_TOPIC": "orders", "UNIQ_KEY": f"0A{number}", "DLQ_REASON": "TimeoutError"}


async def test_a_redrive_starts_also_if_letters_arrive_meanwhile(visitor: Visitor) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=letter(1))
    assert "a: running" in (await redriven(visitor, "origin")).words


async def test_the_limit_of_a_redrive_counts_the_letters_of_all_brokers(
    visitor: Visitor,
) -> None:
    for number, broker in enumerate(visitor.brokers.values()):
        for each in range(3):
            named = letter(10 * number + each)
            await broker.send("%DLQ%billing", b"x", properties=named)
    path = "/dead-letters/billing/redrive?target=origin&limit=4"
    words = (await visitor.get(path)).words
    assert "4 letters of billing would be sent" in words
    assert "a: 3 of 3 stored letters" in words and "b: 1 of 3 stored letters" in words
    done = await redriven(visitor, "origin", limit="4")
    assert "a: running" in done.words and "b: running" not in done.words  # a has four now


async def test_a_job_shows_its_limit_and_rate_over_all_brokers(visitor: Visitor) -> None:
    for number, broker in enumerate(visitor.brokers.values()):
        for each in range(number + 1):
            await broker.send("%DLQ%billing", b"x", properties=letter(10 * number + each))
    path = "/dead-letters/billing/redrive"
    given = {"target": "origin", "limit": "3", "rate": "50"}
    form = await visitor.get(f"{path}?{urlencode(given)}")
    sent = {**given, "job_id": "job-1", "seen": seen(form), "confirm": "billing"}
    assert (await visitor.post(path, sent)).status == 200
    assert (
        "Limit 3 letters Rate 50 letters a second" in (await visitor.get("/redrives/job-1")).words
    )
    job = json.loads((await visitor.get(f"{PREFIX}/redrives/job-1")).text)["job"]
    assert (job["limit"], job["rate"]) == (3, 50)
    assert [(each["limit"], round(each["rate"], 1)) for each in job["parts"]] == [
        (1, 16.7),
        (2, 33.3),
    ]
    visitor.transport.away = {"b"}
    words = (await visitor.get("/redrives/job-1")).words
    assert "Limit ≥ 1 letter Rate ≥ 16.667 letters a second" in words


async def test_a_job_without_limit_and_rate_says_so(visitor: Visitor) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=letter(1))
    await redriven(visitor, "origin")
    assert "Limit all letters Rate no limit" in (await visitor.get("/redrives/job-1")).words


async def test_a_redrive_asks_only_brokers_that_have_the_dead_letter_topic(
    visitor: Visitor,
) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=letter(1))
    visitor.brokers["b"].tables.groups.remove("billing")
    assert "a: running" in (await redriven(visitor, "origin")).words


async def test_a_redrive_without_letters_is_refused(visitor: Visitor) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=letter(1))
    response = await redriven(visitor, "origin", tag="none")
    assert response.status == 409 and "no dead letter meets the conditions" in response.words


async def test_a_redrive_that_starts_nowhere_is_an_error(visitor: Visitor) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=letter(1))
    visitor.transport.errors["StartLetterJob"] = MqError(Code.ILLEGAL_OPERATION, "another job")
    response = await redriven(visitor, "origin")
    assert response.status == 400 and "another job" in response.words


async def test_letters_are_not_sent_to_a_retry_topic_that_no_member_reads(
    visitor: Visitor,
) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=letter(1))
    path = "/dead-letters/billing/redrive"
    shown = seen(await visitor.get(f"{path}?target=retry"))
    await visitor.member("billing", "orders")
    form = await visitor.get(path)
    assert "do not read its retry topic" in form.words
    assert "<option>retry" not in form.text
    assert (await visitor.get(f"{path}?target=retry")).status == 400
    fields = {"target": "retry", "job_id": "job-1", "confirm": "billing"}
    fields["seen"] = shown
    assert (await visitor.post(path, fields)).status == 400
    assert not await visitor.admin.letter_jobs("billing")


async def test_the_page_of_letters_redrives_those_that_it_shows(visitor: Visitor) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x", b"y")
    page = "/dead-letters/billing"
    for query, link in (
        ("", "/redrive"),
        ("?reason=x&tag=y", "/redrive?reason=x&amp;tag=y"),
        ("?reason=", "/redrive?no_reason=yes"),
        ("?tag=", "/redrive?no_tag=yes"),
    ):
        assert f'"{page}{link}"' in (await visitor.get(page + query)).text


async def test_a_broker_is_drained_and_undrained(visitor: Visitor) -> None:
    assert "producers continue at b" in (await visitor.get("/brokers/a/drain")).words
    assert "a drains" in (await visitor.post("/brokers/a/drain", {"accept": "no"})).words
    assert "draining" in (await visitor.get("/brokers")).words
    assert "It can be stopped" in (await visitor.get("/brokers/a")).words
    alone = await visitor.get("/brokers/b/drain")
    assert "no other broker accepts messages" in alone.words
    assert "sends to orders, sessions fail, because only b has queues" in alone.words
    assert "a accepts messages of producers again" in (await visitor.get("/brokers/a/drain")).words
    assert "a accepts messages" in (await visitor.post("/brokers/a/drain", {"accept": "yes"})).words


async def test_a_drain_does_not_call_a_broker_alone_while_another_is_silent(
    visitor: Visitor,
) -> None:
    visitor.transport.away = {"b"}
    form = await visitor.get("/brokers/a/drain")
    assert "no other broker that answers accepts messages: sends may fail" in form.words
    assert "may fail: no other broker that answers has queues" in form.words
    assert "because only a has queues" not in form.words


async def test_fewer_queues_need_the_name_if_messages_become_unreadable(
    visitor: Visitor,
) -> None:
    await visitor.brokers["a"].send("orders", b"1", queue_id=1)
    fields = {"read_queues": "1", "write_queues": "1"}
    refused = await visitor.post("/topics/orders/change", fields)
    assert refused.status == 400 and "1 in queue 1 of a" in refused.words
    done = await visitor.post("/topics/orders/change", {**fields, "confirm": "orders"})
    assert done.status == 200 and "a: read_queues 2 → 1" in done.words


@pytest.mark.parametrize("fields", [{}, {"drain": "yes"}, {"accept": "yes", "drain": "yes"}])
async def test_a_drain_needs_its_field_and_no_other(
    fields: dict[str, str], visitor: Visitor
) -> None:
    response = await visitor.post("/brokers/a/drain", fields)
    assert response.status == 400 and "drains" not in response.words


@pytest.mark.parametrize("path", ACTIONS)
async def test_a_change_knows_the_inputs_of_its_form(path: str, visitor: Visitor) -> None:
    action = ACTIONS[path]
    if "cancel" in path:
        await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=letter(1))
        await redriven(visitor, "origin")
    await Users(visitor).add("app", PolicyDescription("*", ("Get",)))
    await visitor.admin.set_quota("User:app", calls=10)
    configured(visitor)
    names = {"topic": "orders", "group": "billing", "job": "job-1", "user": "app"}
    names |= {} if "name-servers" in path else {"broker": "a"}
    given = {"target": "origin"} if "redrive" in path else {}
    given |= {"key": "fileReservedTime"} if "configuration" in path else {}
    given |= {"transactions": "x", "leases": "x", "subject": "User:app"}
    given |= {"resource": "*", "decision": "ALLOW", "type": "CUSTOM"}
    form = await action.form(visitor.console, names, Fields(given))
    assert {each.name for each in form.inputs} - {CONFIRM} == {*action.fields, *action.settings}
    assert {each.name for each in form.inputs if each.was is not None} == {*action.settings}


def shown(form: Response) -> dict[str, str]:
    """The fields that a browser sends back for a form of settings that nobody edits."""
    fields = dict(re.findall(r'<input [^>]*name="(\w+)"[^>]*value="([^"]*)"', form.text))
    for name, options in re.findall(r'<select name="(\w+)".*?>(.*?)</select>', form.text):
        selected = re.search(r"<option selected>(\w*)", options)
        assert selected
        fields[name] = selected[1]
    fields.pop("csrf_token")
    return fields


async def test_only_the_settings_that_differ_are_changed(visitor: Visitor) -> None:
    await visitor.brokers["b"].group("billing", retry_max_times=3)
    form = await visitor.get("/groups/billing/change")
    assert "17 at a, 4 at b; empty leaves them" in form.words
    response = await visitor.post("/groups/billing/change", {**shown(form), "order": "on"})
    assert response.status == 200 and "order" in response.words
    found = visitor.brokers["b"].tables.groups.get("billing")
    assert found is not None and found.retry_max_times == 3
    same = await visitor.get("/groups/billing/change")
    again = await visitor.post("/groups/billing/change", shown(same))
    assert "had these settings already" in again.words


async def test_a_change_of_another_operator_is_not_overwritten(visitor: Visitor) -> None:
    form = shown(await visitor.get("/groups/billing/change"))
    await visitor.admin.update_group("billing", consume_enable=False)
    refused = await visitor.post("/groups/billing/change", {**form, "max_attempts": "3"})
    assert refused.status == 409 and "May consume was true and is false now" in refused.words
    assert shown(refused)["consume"] == "false" == shown(refused)["was_consume"]
    assert not (await visitor.admin.get_group("billing")).consume_enable


async def test_retry_delays_can_be_cleared(visitor: Visitor) -> None:
    await visitor.admin.update_group("billing", retry_delays=[timedelta(seconds=1)])
    form = shown(await visitor.get("/groups/billing/change"))
    assert form["retry_delays"] == "1000ms"
    await visitor.post("/groups/billing/change", {**form, "retry_delays": ""})
    assert (await visitor.admin.get_group("billing")).retry_delays_ms == ()
    missing = await visitor.post("/groups/billing/change", {**form, "max_attempts": ""})
    assert missing.status in (400, 409)


async def test_a_failed_change_is_not_called_unchanged(visitor: Visitor) -> None:
    visitor.transport.away = {"a", "b"}
    response = await visitor.post("/new-topic", {"topic": "invoices"})
    assert "The change failed" in response.words and "may have made" in response.words
    assert "Nothing was changed" not in response.words
    visitor.transport.away = set()
    bad = await visitor.post("/new-topic", {"topic": "x", "queues": "many"})
    assert "Nothing was changed" in bad.words and "The change failed" not in bad.words


async def test_a_body_is_kept_as_it_is_also_if_the_send_fails(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    class Producer(AsyncProducer):
        def __init__(self, *args: Any, **options: Any) -> None:
            """Connect to nothing."""

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            """Keep nothing."""

        async def send(self, message: Message, **_: Any) -> Any:
            sent.append(message.body)
            raise MqError(Code.MESSAGE_ILLEGAL, "the body is too large")

    monkeypatch.setattr(actions, "AsyncProducer", Producer)
    body = "\n a" + "x" * (1 << 20) + " \n"
    response = await visitor.post("/topics/orders/send", {"body": body})
    assert sent == [body.encode()]
    assert response.status == 400 and "the body is too large" in response.words
    assert f">\n{body}</textarea>" in response.text


async def test_a_draining_broker_where_messages_wait_cannot_be_stopped(visitor: Visitor) -> None:
    await visitor.member("billing", "orders")
    await visitor.brokers["a"].send("orders", b"x")
    await visitor.post("/brokers/a/drain", {"accept": "no"})
    page = await visitor.get("/brokers/a")
    assert "It can be stopped" not in page.words and "Wait until no message waits" in page.words


def replica(number: int, role: str, **fields: Any) -> ReplicaDescription:
    values: dict[str, Any] = {each.name: None for each in dataclasses.fields(ReplicaDescription)}
    values |= {"replica_id": number, "role": role, "end_offset": 1_000, "master_end_offset": 0}
    return ReplicaDescription(**{**values, **fields})


def test_only_what_decides_a_loss_makes_the_form_of_a_promotion_outdated() -> None:
    late = replica(1, "slave", epoch=3, in_sync=None)
    seen = seen_of([late, replica(2, "slave", epoch=3, in_sync=True)])
    candidate = dataclasses.replace(late, role="candidate", in_sync=False)
    in_sync = replica(2, "candidate", epoch=3, in_sync=True)
    assert seen_of([in_sync, candidate]) == seen
    for other in (
        dataclasses.replace(in_sync, in_sync=False),
        dataclasses.replace(in_sync, role="master"),
        dataclasses.replace(in_sync, epoch=4),
    ):
        assert seen_of([candidate, other]) != seen
    assert seen_of([candidate]) != seen
    master = replica(2, "master", epoch=3, in_sync=True)
    assert seen_of([master, late]) == seen_of([master, dataclasses.replace(late, in_sync=True)])


def test_a_promotion_says_what_it_loses() -> None:
    away = [Silent("a", "no answer")]
    (text,) = losses([replica(0, "master"), replica(1, "slave", in_sync=False)], ())
    assert "nothing is lost" in text
    clean, *_ = losses([replica(1, "candidate", in_sync=True)], away)
    assert clean == "replica 1 has each acknowledged message"
    some = losses([replica(1, "candidate", in_sync=False, master_end_offset=1_500)], away)
    assert "replica 1 may lack at least 500 bytes" in some[0] and "unknown" in some[1]
    behind = [replica(1, "slave"), replica(2, "slave", end_offset=900)]
    first, second, last = losses(behind, ())
    assert "may lack messages" in first and "at least 100 bytes" in second and "diverged" in last
