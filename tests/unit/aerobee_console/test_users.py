"""Users, policies and quotas: what the pages show, and that a secret is shown only once."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from aerobee.audit.v1 import audit_pb2 as pb

from aerobee_client.admin.descriptions import PolicyDescription
from aerobee_console.reading.audit import differences
from aerobee_wire.status import Code, MqError
from support.console.servers import Users
from support.console.visitor import NAMESRV, NOW_MS, Response, Visitor

READS = PolicyDescription("Topic:orders*", ("Sub",), source_ips=("10.0.0.0/8",))
DENIES = PolicyDescription("Topic:orders-secret", ("All",), decision="DENY")


@pytest.fixture
def users(visitor: Visitor) -> Users:
    return Users(visitor)


def shown_secret(response: Response) -> str:
    found = re.search(r"<code tabindex=\"0\">([^<]+)</code>", response.text)
    assert found is not None, response.words
    return found[1]


async def seen(visitor: Visitor, address: str) -> str:
    found = re.search(r'name="seen" value="(\w+)"', (await visitor.get(address)).text)
    assert found is not None
    return found[1]


# ---- what the pages show ----


async def test_without_users_the_page_says_how_to_begin(visitor: Visitor, users: Users) -> None:
    page = await visitor.get("/users")
    assert "There are no users." in page.words
    assert "authenticationEnabled=true" in page.words and "aerobee certs init" in page.words
    users.checked = True
    page = await visitor.get("/users")
    assert "Users are not checked" not in page.words and "There are no users." in page.words


async def test_users_and_names_with_policies_alone_are_listed(
    visitor: Visitor, users: Users
) -> None:
    await users.add("ops", super=True)
    await users.add("billing", READS, DENIES, enabled=False)
    await visitor.admin.create_policies("later", [READS])
    page = (await visitor.get("/users")).words
    assert "3 users" in page and "Users are not checked" in page
    assert "billing disabled normal 2 1" in page and "ops enabled SUPER 0 1" in page
    assert "later does not exist – 1 –" in page
    assert "1 user " in (await visitor.get("/users?name=BILL")).words
    assert "does not exist" in (await visitor.get("/users/later")).words
    assert (await visitor.get("/users/none")).status == 404


async def test_a_user_shows_its_policies_in_the_order_in_which_they_decide(
    visitor: Visitor, users: Users
) -> None:
    await users.add("billing", READS, DENIES)
    await visitor.admin.set_quota("User:*", messages_in=1_000)
    page = (await visitor.get("/users/billing")).words
    assert page.index("Topic:orders-secret DENY All") < page.index("Topic:orders* ALLOW Sub 10.0")
    assert "User:* , the default of users without one Messages sent 1,000 a second" in page
    assert "the secret of" not in page


async def test_no_answer_about_clients_is_no_zero(visitor: Visitor, users: Users) -> None:
    await users.add("billing")
    visitor.transport.away = {"a", "b"}
    page = (await visitor.get("/users/billing")).words
    assert "2 brokers did not answer" in page and "Clients ?" in page
    form = (await visitor.get("/users/billing/delete")).words
    assert "clients that sign as billing now: unknown" in form


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("user=app&resource=Topic:orders-1&action=Sub&source_ip=10.1.1.1", 200,
         "may Sub on Topic:orders-1 from 10.1.1.1: decided by ALLOW Sub on Topic:orders*"),
        ("user=app&resource=Topic:orders-secret&action=Pub", 200, "Denied"),
        ("user=app&resource=Topic:x&action=Pub", 200, "no policy matches"),
        ("user=none&resource=Topic:x&action=Pub", 404, "there is no user 'none'"),
        ("user=app&resource=Topic:x*&action=Pub", 400, "is a pattern: name one resource"),
        ("user=app&resource=Topic:x&action=Fly", 400, "action: 'Fly' is not known"),
        ("user=app&action=Pub", 400, "resource: it is empty: give a value"),
        ("", 200, "The most specific policy decides"),
    ],
)  # fmt: skip
async def test_a_right_is_tested_and_the_deciding_policy_named(
    query: str, status: int, words: str, visitor: Visitor, users: Users
) -> None:
    await users.add("app", READS, DENIES)
    page = await visitor.get(f"/rights?{query}")
    assert page.status == status and words in page.words


# ---- secrets ----


async def test_a_secret_is_shown_once_at_its_creation(visitor: Visitor, users: Users) -> None:
    assert "0 users" in (await visitor.get("/users")).words
    done = await visitor.post("/new-user", {"user": "billing", "super": "no"})
    assert "User billing was created" in done.words and done.headers["cache-control"] == "no-store"
    secret = shown_secret(done)
    assert users.secrets("billing") == [secret] and len(secret) == 32
    for address in ("/users", "/users/billing", "/api/v1/users/billing", "/users/billing/change"):
        assert secret not in (await visitor.get(address)).text
    again = await visitor.post("/new-user", {"user": "billing"})
    assert again.status == 400 and "exists already" in again.words
    assert "new secret key is" not in again.words and users.secrets("billing") == [secret]


async def test_a_rotation_keeps_the_former_secret_until_it_is_finished(
    visitor: Visitor, users: Users
) -> None:
    await users.add("billing")
    done = await visitor.post("/users/billing/rotate")
    new = shown_secret(done)
    assert users.secrets("billing") == [new, "the secret of billing"]
    assert "2, being rotated" in (await visitor.get("/users")).words
    third = await visitor.post("/users/billing/rotate")
    assert third.status == 400 and users.secrets("billing")[0] == new
    address = "/users/billing/finish"
    fields = {"seen": await seen(visitor, address)}
    assert (await visitor.post(address, fields)).status == 400
    done = await visitor.post(address, {**fields, "confirm": "billing"})
    assert "has one secret key" in done.words and users.secrets("billing") == [new]


async def test_an_error_without_a_known_outcome_names_the_new_secret(
    visitor: Visitor, users: Users
) -> None:
    await users.add("billing")
    put = visitor.transport.answers["PutUser"]

    async def lost(address: str, request: Any) -> Any:
        await put(address, request)
        raise MqError(Code.REQUEST_TIMEOUT, "no answer within 3 s")

    visitor.transport.answers["PutUser"] = lost
    answer = await visitor.post("/users/billing/rotate")
    assert answer.status == 502 and "The change failed" in answer.words
    assert f"its new secret key is {users.secrets('billing')[0]}" in answer.words


# ---- changes ----


async def test_a_user_is_disabled_while_a_broker_is_away(visitor: Visitor, users: Users) -> None:
    await users.add("billing", READS)
    visitor.transport.away = {"b"}
    form = (await visitor.get("/users/billing/change")).words
    assert "clients that sign as billing now: unknown" in form and "calls are rejected" in form
    fields = {"enabled": "no", "was_enabled": "yes", "super": "no", "was_super": "no"}
    done = await visitor.post("/users/billing/change", fields)
    assert "Done in part" in done.words and "broker b at b does not have it" in done.words
    user = users.store.table.user("billing")
    assert user is not None and not user.enabled
    again = await visitor.post("/users/billing/change", fields)
    assert again.status == 409 and "Enabled was yes and is no now" in again.words
    bad = await visitor.post("/users/billing/change", {"enabled": "maybe", "was_enabled": "no"})
    assert bad.status == 400 and "choose yes or no" in bad.words


async def test_the_last_super_user_stays(visitor: Visitor, users: Users) -> None:
    await users.add("ops", super=True)
    address = "/users/ops/delete"
    fields = {"confirm": "ops", "seen": await seen(visitor, address)}
    answer = await visitor.post(address, fields)
    assert answer.status == 400 and users.secrets("ops")


async def test_a_deletion_is_refused_after_the_policies_changed(
    visitor: Visitor, users: Users
) -> None:
    await users.add("billing", READS)
    address = "/users/billing/delete"
    assert "ALLOW Sub on Topic:orders*" in (await visitor.get(address)).words
    fields = {"confirm": "billing", "seen": await seen(visitor, address)}
    await visitor.admin.create_policies("billing", [DENIES])
    assert (await visitor.post(address, fields)).status == 409 and users.secrets("billing")
    fields["seen"] = await seen(visitor, address)
    assert "was deleted" in (await visitor.post(address, fields)).words
    assert not users.secrets("billing")


async def test_policies_are_added_changed_and_deleted(visitor: Visitor, users: Users) -> None:
    await users.add("app")
    fields = {"resource": "Topic:orders", "actions": "Pub, Sub", "source_ips": "10.0.0.0/8 ::1"}
    done = await visitor.post("/users/app/policies/new", fields)
    assert "ALLOW Pub,Sub on Topic:orders from 10.0.0.0/8,::1" in done.words
    assert (await visitor.post("/users/app/policies/new", fields)).status == 400
    bad = await visitor.post("/users/app/policies/new", {"resource": "x", "actions": "Pub"})
    assert bad.status == 400 and not bad.words.count("created")
    key = "resource=Topic:orders&decision=ALLOW&type=CUSTOM"
    form = await visitor.get(f"/users/app/policies/change?{key}")
    actions = re.search(r'name="was_actions" value="([^"]*)"', form.text)
    assert actions is not None and actions[1] == "Pub,Sub"
    changed = {"resource": "Topic:orders", "decision": "ALLOW", "type": "CUSTOM"}
    done = await visitor.post(
        "/users/app/policies/change", {**changed, "was_actions": "Pub,Sub", "actions": "Sub"}
    )
    assert "ALLOW Sub on Topic:orders from" in done.words
    stale = {**changed, "was_actions": "Pub,Sub", "actions": "All"}
    assert (await visitor.post("/users/app/policies/change", stale)).status == 409
    address = "/users/app/policies/delete?resource=Topic:orders&type=CUSTOM"
    form = await visitor.get(address)
    assert "is deleted" in form.words and "0 policies are left" in form.words
    fields = {"resource": "Topic:orders", "type": "CUSTOM"}
    assert (await visitor.post(address.partition("?")[0], {**fields, "seen": "0"})).status == 409
    fields["seen"] = await seen(visitor, address)
    done = await visitor.post(address.partition("?")[0], fields)
    assert "were deleted" in done.words and not users.store.table.policies("app")


async def test_quotas_are_set_changed_and_deleted(visitor: Visitor, users: Users) -> None:
    assert "nothing is limited" in (await visitor.get("/quotas")).words
    nothing = await visitor.post("/quotas/new", {"subject": "User:app"})
    assert nothing.status == 400 and "give at least one rate" in nothing.words
    fields = {"subject": "User:app", "messages_in": "100"}
    assert "Messages sent: 100 a second" in (await visitor.post("/quotas/new", fields)).words
    assert (await visitor.post("/quotas/new", fields)).status == 400
    changed = {"subject": "User:app", "was_calls": "0", "calls": "7"}
    done = await visitor.post("/quotas/change", changed)
    assert "Calls: 7 a second" in done.words and "Messages sent: 100 a second" in done.words
    assert (await visitor.post("/quotas/change", changed)).status == 409
    assert "User:app 7 100 no limit" in (await visitor.get("/quotas")).words
    address = "/quotas/delete?subject=User:app"
    fields = {"subject": "User:app", "seen": await seen(visitor, address)}
    assert "was deleted" in (await visitor.post("/quotas/delete", fields)).words
    assert (await visitor.get(address)).status == 404


async def test_changes_need_the_token_and_a_right(visitor: Visitor, users: Users) -> None:
    refused = await visitor.post("/new-user", {"user": "eve"}, token="wrong")
    assert refused.status == 403
    refused = await visitor.post("/new-user", {"user": "eve"}, origin="http://evil.example")
    assert refused.status == 403 and not list(users.store.table.users())

    def denied(_: str, __: Any) -> Any:
        raise MqError(Code.NO_PERMISSION, "user eve may not Create Cluster:c")

    visitor.transport.answers["PutUser"] = denied
    refused = await visitor.post("/new-user", {"user": "eve"})
    assert refused.status == 403 and "may not Create" in refused.words


async def test_the_api_returns_the_secret_of_a_creation(visitor: Visitor, users: Users) -> None:
    answer = await visitor.api("/new-user", {"user": "app", "super": "yes"})
    made = json.loads(answer.body)
    assert [made["secret"]] == users.secrets("app")
    listed = json.loads((await visitor.get("/api/v1/users")).body)
    assert listed["rows"][0]["user"]["super"] is True and made["secret"] not in str(listed)
    right = await visitor.get("/api/v1/rights?user=app&resource=Topic:x&action=Pub")
    assert json.loads(right.body)["decision"]["reason"] == "the user is SUPER"


# ---- test audit ----
#
# The page of audit logs, and the changes on the overview.


HASH = "ab" * 32
LINES = (
    pb.AuditLine(
        number=4, time_ms=NOW_MS - 1_000, event="change", user="ann",
        rpc="AdminService/UpdateTopic",
        address="10.0.0.7:5000", resources=["Topic:orders"], result="OK",
        before='{"topic": "orders", "write_queue_count": 4}',
        after='{"topic": "orders", "write_queue_count": 8}',
    ),
    pb.AuditLine(
        number=3, time_ms=NOW_MS - 2_000, event="rejected", claimed_user="<b>eve</b>",
        rpc="AdminService/DeleteTopic", address="10.0.0.8:5000", result="NO_PERMISSION",
        reason="the signature is not valid", count=7,
    ),
    pb.AuditLine(number=2, time_ms=NOW_MS - 3_000, event="change", certificate="aerobee://p/admin/x",
                 rpc="AdminService/DeleteGroup", resources=["Group:g"]),
)  # fmt: skip


class Logs:
    """Broker "a" has a log. "b" and the name server have none, unless `away` is set."""

    def __init__(self, visitor: Visitor, *lines: pb.AuditLine, older_ms: int = 0) -> None:
        self.lines = lines or LINES
        self.older_ms = older_ms
        self.away: set[str] = set()
        self.requests: list[pb.ListAuditLinesRequest] = []
        visitor.transport.answers["ListAuditLines"] = self

    def __call__(self, address: str, request: pb.ListAuditLinesRequest) -> Any:
        if address in self.away:
            raise MqError(Code.BROKER_UNREACHABLE, f"no answer from {address}")
        self.requests.append(request)
        if address != "a":
            return pb.ListAuditLinesResponse()
        return pb.ListAuditLinesResponse(
            lines=[each for each in self.lines if request.event in ("", each.event)],
            enabled=True, complete_from_ms=self.older_ms, last_number=4, last_hash=HASH,
        )  # fmt: skip


async def test_lines_say_who_changed_what(visitor: Visitor) -> None:
    logs = Logs(visitor)
    page = await visitor.get("/audit")
    assert page.status == 200
    assert "ann 10.0.0.7:5000 UpdateTopic Topic:orders write_queue_count: 4 → 8 OK" in page.words
    assert "rejected 7 times not known claims to be <b>eve</b> 10.0.0.8:5000" in page.words
    assert "<b>eve" not in page.text
    assert "aerobee://p/admin/x DeleteGroup Group:g not known" in page.words
    assert f"4:{HASH}" in page.words and "is damaged" not in page.words
    assert f"Changes of name server {NAMESRV}, broker b at b are not recorded" in page.words
    assert 'rel="next"' not in page.text and len(logs.requests) == 3


async def test_filters_reach_the_servers_and_the_next_page_begins_where_this_one_ends(
    visitor: Visitor,
) -> None:
    logs = Logs(visitor, older_ms=NOW_MS - 4_000)
    page = await visitor.get(
        "/audit?user=ann&rpc=UpdateTopic&result=OK&event=change&resource=Topic:o*&since=1h"
    )
    (asked, *_) = logs.requests
    assert (asked.user, asked.rpc, asked.result) == ("ann", "UpdateTopic", "OK")
    assert (asked.event, asked.resource) == ("change", "Topic:o*")
    assert asked.from_ms == NOW_MS - 3_600_000
    assert f"until={NOW_MS - 4_000}" in page.text and "were not searched" in page.words
    await visitor.get(f"/audit?until={NOW_MS - 4_000}")
    assert logs.requests[-1].to_ms == NOW_MS - 4_000


async def test_damaged_lines_are_no_small_print(visitor: Visitor) -> None:
    Logs(visitor, pb.AuditLine(time_ms=NOW_MS, event="damaged", reason="line 7 follows line 5"))
    page = await visitor.get("/audit")
    assert "1 line is damaged" in page.words and "line 7 follows line 5" in page.words
    assert "state bad" in page.text


async def test_a_server_that_does_not_answer_is_named(visitor: Visitor) -> None:
    Logs(visitor).away = {"b"}
    page = await visitor.get("/audit")
    assert "1 server did not answer" in page.words and "no answer from b" in page.words
    overview = await visitor.get("/")
    assert "broker b at b: no answer from b" in overview.words


async def test_logs_are_not_called_missing_while_a_server_is_silent(visitor: Visitor) -> None:
    Logs(visitor).away = {"a"}
    page = await visitor.get("/audit")
    assert "Not every server has an audit log" in page.words
    assert "No server has an audit log" not in page.words


async def test_without_any_log_nothing_is_called_unchanged(visitor: Visitor) -> None:
    for address in ("/audit", "/"):
        page = await visitor.get(address)
        assert page.status == 200 and "set auditLogPath" in page.words
        assert "No change." not in page.words
    assert "No server has an audit log" in (await visitor.get("/audit")).words


async def test_the_overview_has_changes_only(visitor: Visitor) -> None:
    Logs(visitor)
    page = await visitor.get("/")
    assert "UpdateTopic" in page.words and "DeleteGroup" in page.words
    assert "rejected" not in page.words and 'href="/audit"' in page.text


@pytest.mark.parametrize(
    ("query", "field"), [("event=x", "event"), ("since=yesterday", "since"), ("until=x", "until")]
)
async def test_a_bad_filter_names_its_field(query: str, field: str, visitor: Visitor) -> None:
    page = await visitor.get(f"/audit?{query}")
    assert page.status == 400 and f"{field}: " in page.words


def test_differences_are_bounded() -> None:
    before = {str(number): number for number in range(50)}
    after = {str(number): "x" * 1_000 for number in range(50)}
    found = differences(before, after)
    assert len(found) == 9 and found[-1] == "42 more" and max(map(len, found)) < 200
    assert differences(None, after) == [] and differences(before, before) == []
    assert differences({"a": 1}, {"b": True}) == ["a: 1 → none", "b: false → true"]
