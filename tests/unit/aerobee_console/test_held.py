"""What waits, jobs and options: what the pages show, and what becomes of those that are chosen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2 as pb
from aerobee.broker.v1 import replica_pb2, transaction_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire.status import Code, MqError
from support.broker.pop_consumer import PopConsumer
from support.console.servers import configured
from support.console.visitor import NOW_MS, Visitor


def transactions(visitor: Visitor, *ids: str) -> list[Any]:
    """Let broker "a" have open transactions. Return the ends that are requested of it."""
    ends: list[Any] = []

    def listed(address: str, request: Any) -> Any:
        answer = pb.ListTransactionsResponse(total=len(ids) if address == "a" else 0)
        for number, each in enumerate(ids if address == "a" else ()):
            answer.transactions.add(
                topic="orders", transaction_id=each, queue_offset=number, producer_group="shop",
                stored_timestamp_ms=NOW_MS - 90_000, checks=12,
            )  # fmt: skip
        return answer

    def end(_: str, request: Any) -> Any:
        ends.extend(request.ends)
        code = Code.INVALID_TRANSACTION_ID if request.ends[0].transaction_id == "bad" else 0
        result = transaction_pb2.EndTransactionResult(code=code, message="it has ended")
        return transaction_pb2.EndTransactionResponse(results=[result])

    visitor.transport.answers |= {"ListTransactions": listed, "EndTransaction": end}
    return ends


def chosen(text: str) -> list[str]:
    return re.findall(r'type="checkbox" name="\w+" value="([^"]+)"', text)


async def test_several_transactions_are_rolled_back_after_the_word_was_typed(
    visitor: Visitor,
) -> None:
    ends = transactions(visitor, "t1", "t2", "t3")
    page = await visitor.get("/transactions")
    assert "Oldest 1 min 30 s" in page.words and "Stuck 3" in page.words
    first, _, third = chosen(page.text)
    query = f"transactions={first}&transactions={third}&outcome=rollback"
    form = await visitor.get(f"/transactions/end?{query}")
    assert "Roll back 2 transactions" in form.words
    assert "message of t1 for orders is discarded" in form.words and "t2" not in form.words
    fields = {"transactions": f"{first} {third}", "outcome": "rollback"}
    assert (await visitor.post("/transactions/end", fields)).status == 400 and not ends
    done = await visitor.post("/transactions/end", {**fields, "confirm": "rollback"})
    assert "2 transactions rolled back" in done.words and "state good" in done.text
    assert [each.transaction_id for each in ends] == ["t1", "t3"]


async def test_a_transaction_that_ended_meanwhile_is_not_called_done(visitor: Visitor) -> None:
    transactions(visitor, "t1", "bad")
    keys = " ".join(chosen((await visitor.get("/transactions")).text))
    fields = {"transactions": f"{keys} a/9/gone", "outcome": "commit", "confirm": "commit"}
    done = await visitor.post("/transactions/end", fields)
    assert "Done in part" in done.words and "1 transaction committed" in done.words
    assert "bad for orders: it has ended" in done.words and "a/9/gone" in done.words
    gone = {**fields, "transactions": "a/9/gone"}
    assert (await visitor.post("/transactions/end", gone)).status == 409
    bad = await visitor.post("/transactions/end", {**fields, "transactions": keys.split()[1]})
    assert "The change failed" in bad.words and "it has ended" in bad.words


async def test_a_transaction_of_a_silent_broker_is_unknown_and_not_ended(visitor: Visitor) -> None:
    ends = transactions(visitor, "t1")
    (key,) = chosen((await visitor.get("/transactions")).text)
    visitor.transport.away = {"b"}
    fields = {"transactions": f"{key} b/3/t9 a/9/gone", "outcome": "commit", "confirm": "commit"}
    form = await visitor.get(f"/transactions/end?transactions={key}+b/3/t9&outcome=commit")
    assert "b/3/t9: unknown, because b did not answer" in form.words
    done = await visitor.post("/transactions/end", fields)
    assert "b/3/t9: unknown, because b did not answer" in done.words and len(ends) == 1
    assert "a/9/gone: it had ended before" in done.words
    none = await visitor.post("/transactions/end", {**fields, "transactions": "b/3/t9"})
    assert none.status == 409 and "b/3/t9: unknown, because b did not answer" in none.words


async def test_rows_are_looked_for_with_the_filters_of_their_list(visitor: Visitor) -> None:
    asked: list[Any] = []

    def listed(address: str, request: Any) -> Any:
        asked.append(request)
        answer = pb.ListTransactionsResponse(total=5_000 if address == "a" else 0)
        if address == "a":
            answer.transactions.add(
                topic="orders", transaction_id="t1", producer_group="shop",
                stored_timestamp_ms=NOW_MS,
            )  # fmt: skip
        return answer

    visitor.transport.answers["ListTransactions"] = listed
    page = await visitor.get("/transactions?topic=orders&group=shop")
    pick = page.text.partition('<form class="pick"')[2]
    assert 'name="topic" value="orders"' in pick and 'name="group" value="shop"' in pick
    query = "transactions=a/0/t1+a/9/behind&outcome=commit&topic=orders&group=shop"
    form = await visitor.get(f"/transactions/end?{query}")
    assert 'name="topic" value="orders"' in form.text
    assert "a/9/behind: unknown, because it is not among the 1 oldest" in form.words
    assert {(each.topic, each.producer_group) for each in asked} == {("orders", "shop")}


async def test_a_lease_of_a_silent_broker_is_unknown_and_not_ended(visitor: Visitor) -> None:
    requests: list[Any] = []

    def listed(_: str, request: Any) -> Any:
        requests.append(request)
        return pb.ListLeasesResponse()

    visitor.transport.answers["ListLeases"] = listed
    fields = {"leases": "b/orders/1/7/5", "topic": "orders", "client": "c-1"}
    gone = await visitor.post("/leases/billing/release", fields)
    assert gone.status == 409 and "it had ended before" in gone.words
    assert {(each.topic, each.client_id) for each in requests} == {("orders", "c-1")}
    visitor.transport.away = {"b"}
    silent = await visitor.post("/leases/billing/release", fields)
    assert "b/orders/1/7/5: unknown, because b did not answer" in silent.words


async def test_nothing_that_is_chosen_is_an_error_with_its_remedy(visitor: Visitor) -> None:
    response = await visitor.get("/transactions/end?outcome=commit")
    assert response.status == 400 and "choose at least one row" in response.words


async def test_a_lease_is_released_and_its_client_named(visitor: Visitor) -> None:
    released: list[Any] = []

    def listed(address: str, _: Any) -> Any:
        answer = pb.ListLeasesResponse(total=1)
        answer.leases.add(
            topic="orders", queue_id=1, queue_offset=7, lease_id=5, client_id=f"client-{address}",
            message_id=f"0A{address}", since_timestamp_ms=NOW_MS - 60_000,
        )  # fmt: skip
        return answer

    def release(address: str, request: Any) -> Any:
        released.append((address, request.queue_offset, request.lease_id))
        return pb.ReleaseLeaseResponse()

    visitor.transport.answers |= {"ListLeases": listed, "ReleaseLease": release}
    page = await visitor.get("/leases?group=billing")
    assert "client-a 1 min" in page.words
    key = next(each for each in chosen(page.text) if each.startswith("b/"))
    form = await visitor.get(f"/leases/billing/release?leases={key}")
    assert "0Ab is delivered again at once; client-b has it now" in form.words
    done = await visitor.post("/leases/billing/release", {"leases": key})
    assert "1 lease of billing released" in done.words and released == [("b", 7, 5)]


async def test_lists_of_what_waits_are_unknown_and_not_empty_without_an_answer(
    visitor: Visitor,
) -> None:
    pages = ("/delayed", "/transactions", "/leases?group=billing", "/leases", "/lite", "/redrives")
    for page in pages:
        assert "Unknown: no broker answered" not in (await visitor.get(page)).words
    visitor.transport.away = {"a", "b"}
    for page in pages:
        assert "Unknown: no broker answered" in (await visitor.get(page)).words


async def test_the_groups_with_leases_are_those_with_the_most(visitor: Visitor) -> None:
    for number in range(120):
        await visitor.group(f"g-{number}")
    assert "No group has a message on lease." in (await visitor.get("/leases")).words
    broker = visitor.brokers["a"]
    await broker.send("orders", b"1", b"2", queue_id=0)
    for number in range(120):
        await PopConsumer(broker, f"g-{number}", "orders").pop(2 if number == 117 else 1)
        if number == 98:
            words = (await visitor.get("/leases")).words
            assert "Groups with leases Group" in words and "g-98 1 0" in words
    words = (await visitor.get("/leases")).words
    assert "Groups with leases, the 100 with the most Group" in words
    assert "Members g-117 2 0 g-0 1 0" in words and "g-99 " not in words


def letter(number: int, reason: str) -> dict[str, str]:
    return {"RETRY_TOPIC": "orders", "UNIQ_KEY": f"0A{number}", "DLQ_REASON": reason}


async def test_letters_are_purged_by_reason_and_their_job_is_listed(visitor: Visitor) -> None:
    for number, reason in enumerate(("TimeoutError", "ValueError", "ValueError")):
        properties = letter(number, reason)
        await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=properties)
    path = "/dead-letters/billing/purge"
    form = await visitor.get(f"{path}?reason=ValueError")
    assert "2 letters of billing would be dismissed" in form.words
    fields = dict(re.findall(r'name="(seen|reason|job_id)" value="([^"]*)"', form.text))
    refused = await visitor.post(path, {**fields, "confirm": "bill"})
    assert refused.status == 400 and not await visitor.admin.letter_jobs("billing")
    done = await visitor.post(path, {**fields, "confirm": "billing"})
    assert "a: running" in done.words
    assert f"{fields['job_id']} billing" in (await visitor.get("/redrives")).words
    page = await visitor.get(f"/redrives/{fields['job_id']}")
    assert "Action dismiss" in page.words and "Reason ValueError" in page.words
    await visitor.post(f"/redrives/{fields['job_id']}/cancel", {})
    again = await visitor.post(f"/redrives/{fields['job_id']}/cancel", {})
    assert again.status == 200 and "had ended before" in again.words


async def test_a_job_of_a_silent_broker_is_not_called_unknown_to_all(visitor: Visitor) -> None:
    assert (await visitor.get("/redrives/job-1")).status == 404
    visitor.transport.away = {"b"}
    page = await visitor.get("/redrives/job-1")
    assert page.status == 200 and "no broker that answered has the job" in page.words


@pytest.mark.parametrize("path", ["/brokers/a/configuration", "/name-servers/configuration"])
async def test_an_option_is_changed_and_taken_back(path: str, visitor: Visitor) -> None:
    values = configured(visitor)
    page = await visitor.get(f"{path}?key=reserved")
    assert "fileReservedTime 72 default Change" in page.words and "listenPort" not in page.words
    form = await visitor.get(f"{path}/change?key=filereservedtime")
    assert "Change fileReservedTime" in form.words
    fields = {"key": "fileReservedTime", "was_value": "72", "value": "48"}
    assert "fileReservedTime is 48" in (await visitor.post(f"{path}/change", fields)).words
    assert values["fileReservedTime"] == "48"
    stale = await visitor.post(f"{path}/change", fields)
    assert stale.status == 409 and "was 72 and is 48 now" in stale.words
    back = {"key": "fileReservedTime", "reset": "yes"}
    assert "was taken back" in (await visitor.post(f"{path}/change", back)).words
    assert values["fileReservedTime"] == "72"
    fixed = await visitor.get(f"{path}/change?key=listenPort")
    assert fixed.status == 400 and "can only be set at the start" in fixed.words
    assert (await visitor.get(f"{path}/change?key=none")).status == 400


async def test_an_option_names_a_replica_that_is_not_registered(visitor: Visitor) -> None:
    configured(visitor)
    status = replica_pb2.GetReplicationStatusResponse(role="master", address="a", total_replicas=2)
    visitor.transport.answers["GetReplicationStatus"] = lambda *_: status
    path = "/brokers/a/configuration"
    assert "replica 1 of a is not registered: start it again" in (await visitor.get(path)).words
    fields = {"key": "fileReservedTime", "was_value": "72", "value": "48"}
    done = await visitor.post(f"{path}/change", fields)
    assert "Done in part" in done.words and "not changed: replica 1 of a is not" in done.words


async def test_an_option_that_differs_between_processes_can_be_made_equal(
    visitor: Visitor,
) -> None:
    values = configured(visitor)
    get = visitor.transport.answers["GetConfig"]

    def differing(address: str, request: Any) -> Any:
        answer = get(address, request)
        if address == "b":
            answer.options[0].value = "24"
        return answer

    visitor.transport.answers["GetConfig"] = differing
    replicas = namesrv_pb2.GetClusterInfoResponse()
    replicas.brokers.add(cluster="c", broker_name="a", addresses={0: "a", 1: "b"})
    visitor.transport.answers["GetClusterInfo"] = lambda *_: replicas
    changed: list[str] = []
    update = visitor.transport.answers["UpdateConfig"]

    def noted(address: str, request: Any) -> Any:
        changed.append(address)
        return update(address, request)

    visitor.transport.answers["UpdateConfig"] = noted
    fields = {"key": "fileReservedTime", "was_value": "72", "value": "72"}
    await visitor.post("/brokers/a/configuration/change", fields)
    assert changed == ["a", "b"] and values["fileReservedTime"] == "72"


async def test_an_option_that_a_process_refuses_is_no_success(visitor: Visitor) -> None:
    configured(visitor)
    visitor.transport.errors["UpdateConfig"] = MqError(Code.INVALID_PARAMETER, "48x is no number")
    fields = {"key": "fileReservedTime", "was_value": "72", "value": "48x"}
    response = await visitor.post("/brokers/a/configuration/change", fields)
    assert response.status == 400 and "48x is no number" in response.words


async def test_a_group_is_paused_and_resumed(visitor: Visitor) -> None:
    assert "Pause" in (await visitor.get("/groups/billing")).words
    done = await visitor.post("/groups/billing/pause", {"consume": "no"})
    assert "billing is paused" in done.words and "state good" in done.text
    assert "Resume" in (await visitor.get("/groups/billing")).words
    again = await visitor.post("/groups/billing/pause", {"consume": "yes"})
    assert "billing consumes again" in again.words


async def test_offsets_are_cloned_to_another_group(visitor: Visitor) -> None:
    await visitor.group("copy")
    await visitor.brokers["a"].send("orders", b"1", b"2")
    await visitor.admin.commit_offsets("billing", {("orders", "a", 0): 2})
    path = "/groups/billing/clone"
    form = await visitor.get(f"{path}?target=copy")
    assert "copy moves in 1 queue of orders" in form.words and "a/0 none yet 2 2" in form.words
    seen = re.search(r'name="seen" value="(\w+)"', form.text)
    assert seen
    fields = {"target": "copy", "seen": seen[1], "confirm": "copy"}
    done = await visitor.post(path, fields)
    assert "copy continues where billing is" in done.words and "queue 0: offset 2" in done.words
    missing = await visitor.get(f"{path}?target=none")
    assert missing.status == 404


async def test_a_broker_with_one_copy_has_no_replica_to_promote(visitor: Visitor) -> None:
    assert "/promote" not in (await visitor.get("/brokers/a")).text
    form = await visitor.get("/brokers/a/promote")
    assert "no replica can be promoted" in form.words
    response = await visitor.post("/brokers/a/promote", {"confirm": "a", "replica": "2"})
    assert response.status == 409
