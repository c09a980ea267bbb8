"""The pages: what they show, how many calls they need, and that they never hide a broker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest

from aerobee_cli.doctor.checks import Finding
from aerobee_client.admin.descriptions import BrokerStatus, PolicyDescription
from aerobee_client.admin.stats import History, Stats
from aerobee_console.reading.overview import HOUR_MS, MINUTE_MS, letters_of_day
from aerobee_console.web.pages import PAGES
from aerobee_wire import properties
from aerobee_wire.status import Code, MqError
from support.clock.polling import until
from support.console.servers import Users
from support.console.visitor import HOST, Visitor, call, unfounded

ID = "C00002023D65006101A28F6593060018"
# Page → calls to each broker. "{id}" is the id of a message.
CALLS = {
    "/": {"GetBrokerStatus": 1, "GetBacklog": 1, "GetStats": 2, "ListAuditLines": 1},
    "/brokers": {"GetBrokerStatus": 1},
    "/topics": {"ListTopics": 1},
    "/topics/orders": {"DescribeTopic": 1, "GetStats": 1},
    "/groups": {"ListGroups": 1},
    "/groups/billing": {
        "DescribeGroup": 1,
        "ListBlockedMessageGroups": 1,
        "GetStats": 1,
        "ListLeases": 1,
        "ListDelayed": 1,
    },
    "/messages": {},
    "/messages?topic=orders&key=k": {"SearchMessages": 1},
    "/dead-letters": {"GetBacklog": 1},
    "/dead-letters/billing": {"ListLetterJobs": 1},
    "/clients": {"ListClients": 1},
    "/delayed": {"ListDelayed": 1},
    "/transactions": {"ListTransactions": 1},
    "/topics?sort=lag": {"ListTopics": 2},
    "/leases": {"ListGroups": 2},
    "/leases?group=billing": {"ListLeases": 1},
    "/lite": {"ListTopics": 1},
    "/lite?topic=sessions": {"ListLiteTopics": 1, "ListLiteClients": 1},
    "/redrives": {"ListLetterJobs": 1},
    "/redrives/job-1": {"ListLetterJobs": 1},
    "/users": {},
    "/users/app": {"ListClients": 1},
    "/quotas": {},
    "/audit": {"ListAuditLines": 1},
}


# Routes that ask the name servers alone, or no server.
OF_NO_BROKER = {"/keys", "/rights", "/users", "/quotas", "/messages", "/name-servers/configuration"}


def test_each_page_is_shown_with_a_silent_broker() -> None:
    shown = [page.partition("?")[0] for page in (*CALLS, f"/messages/{ID}", *OF_BROKER_B)]
    patterns = {route: re.sub(r"\{\w+\}", "[^/]+", route) for route in PAGES}
    missing = {
        route
        for route, pattern in patterns.items()
        if not any(re.fullmatch(pattern, page) for page in shown)
    }
    assert missing - OF_NO_BROKER == {"/messages/{message_id}/body"}  # a file, not a page


async def test_a_page_calls_each_broker_a_fixed_number_of_times(visitor: Visitor) -> None:
    for number in range(50):
        visitor.topic(f"topic-{number}")
    await Users(visitor).add("app")
    for page, calls in CALLS.items():
        visitor.transport.calls.clear()
        response = await visitor.get(page)
        assert response.status == (404 if page == "/redrives/job-1" else 200), page
        for broker in ("a", "b"):
            made = Counter(method for name, method in visitor.transport.calls if name == broker)
            assert made == calls, page


OF_BROKER_B = ("/brokers/b", "/brokers/b/configuration", "/brokers/b/promote", "/brokers/b/drain")


OF_BROKERS = tuple(page for page, calls in CALLS.items() if calls)


@pytest.mark.parametrize("silence", [Code.BROKER_UNREACHABLE, Code.REQUEST_TIMEOUT])
async def test_a_page_names_a_broker_that_does_not_answer(silence: Code, visitor: Visitor) -> None:
    visitor.transport.silence = silence
    named = {properties.KEYS: "k", properties.UNIQUE_KEY: ID}
    await visitor.brokers["a"].send("orders", b"x", properties=named)
    await Users(visitor).add("app")
    visitor.transport.away = {"b"}
    for page in (*OF_BROKERS, f"/messages/{ID}", *OF_BROKER_B):
        response = await visitor.get(page)
        assert response.status == 200, page
        assert "Not complete" in response.words, page
        assert "no answer from b" in response.words, page
        if page != "/users/app":  # its policies and limits are those of the name servers
            assert unfounded(response.text) == [], page


async def test_a_page_without_any_answer_shows_no_number_as_zero(visitor: Visitor) -> None:
    await Users(visitor).add("app", PolicyDescription("*", ("Get",)))
    visitor.transport.away = {"a", "b"}
    for page in OF_BROKERS:
        response = await visitor.get(page)
        assert response.status == 200, page
        what = "servers" if page == "/audit" else "brokers"
        assert f"2 {what} did not answer" in response.words, page
        main = response.text[response.text.index("</header>") :]
        assert ">0<" not in main and ">-1<" not in main, page


async def test_a_sum_without_one_broker_is_a_lower_bound(visitor: Visitor) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x", b"y")
    visitor.transport.away = {"b"}
    assert "Dead letters ≥ 2" in (await visitor.get("/dead-letters")).words
    visitor.transport.away = {"a"}
    assert "Dead letters ? of all groups" in (await visitor.get("/dead-letters")).words


@pytest.mark.parametrize(
    "page", ["/groups/billing", "/dead-letters/billing", "/transactions", "/leases?group=billing"]
)
async def test_the_oldest_of_an_empty_list_is_unknown_without_one_broker(
    page: str, visitor: Visitor
) -> None:
    none = re.compile("Oldest( message)? none ")
    assert none.search((await visitor.get(page)).words)
    visitor.transport.away = {"b"}
    words = (await visitor.get(page)).words
    assert re.search(r"Oldest( message)? \? ", words) and not none.search(words)


async def test_an_age_without_one_broker_is_a_lower_bound(visitor: Visitor) -> None:
    await visitor.brokers["a"].send("%DLQ%billing", b"x")
    assert re.search(r"Oldest \d", (await visitor.get("/dead-letters/billing")).words)
    visitor.transport.away = {"b"}
    assert re.search(r"Oldest ≥ \d", (await visitor.get("/dead-letters/billing")).words)


async def test_a_topic_without_producers_at_one_broker_may_have_some_at_another(
    visitor: Visitor,
) -> None:
    text = "No connected client publishes to the topic"
    assert f"{text}." in (await visitor.get("/topics/orders")).words
    visitor.transport.away = {"b"}
    assert f"{text} at the brokers that answered." in (await visitor.get("/topics/orders")).words


async def test_a_broker_that_is_not_registered_any_more_stays_on_the_pages(
    visitor: Visitor,
) -> None:
    await visitor.get("/topics")
    visitor.transport.unregistered = {"b"}
    for page in ("/topics", "/brokers", *OF_BROKER_B):
        response = await visitor.get(page)
        assert response.status == 200 and unfounded(response.text) == []
        assert "b : it is not registered any more" in response.words


async def test_the_overview_shows_findings_and_no_green_verdict(visitor: Visitor) -> None:
    visitor.findings = [Finding("disk", "a", "97 % are used", "add space")]
    response = await visitor.get("/")
    assert "1 finding" in response.words and "disk a : 97 % are used add space" in response.words
    assert "state good" not in response.text


async def test_the_overview_shows_all_else_while_its_checks_run(visitor: Visitor) -> None:
    visitor.checks_may_end.clear()
    page = await visitor.get("/")
    assert "The checks still run" in page.words and "Brokers 2 of 2 answered" in page.words
    assert "state good" not in page.text
    visitor.checks_may_end.set()
    await until(lambda: _has_findings(visitor))
    visitor.checks_may_end.clear()
    visitor.now_ms += 20_000
    assert "No findings" in (await visitor.get("/")).words
    visitor.now_ms += 50_000
    assert "The checks still run" in (await visitor.get("/")).words, "the last result is old"
    visitor.checks_may_end.set()


async def _has_findings(visitor: Visitor) -> bool:
    return "No findings" in (await visitor.get("/")).words


async def test_a_hint_of_the_doctor_is_no_finding(visitor: Visitor) -> None:
    visitor.findings = [Finding("topic", "old", "it is not used", "delete it", hint=True)]
    page = await visitor.get("/")
    assert "No findings" in page.words and "state good" in page.text
    assert "1 hint topic old : it is not used delete it" in page.words


async def test_a_check_without_findings_is_not_green_while_a_broker_is_missing(
    visitor: Visitor,
) -> None:
    assert "state good" in (await visitor.get("/")).text
    visitor.transport.away = {"b"}
    assert "state good" not in (await visitor.get("/")).text


async def test_a_filter_and_a_page_are_in_the_links(visitor: Visitor) -> None:
    for number in range(150):
        visitor.topic(f"topic-{number:03}")
    response = await visitor.get("/topics?name=topic&sort=lag")
    assert "150 topics, page 1 of 2" in response.words
    assert 'href="?name=topic&amp;sort=lag&amp;page=2"' in response.text
    second = await visitor.get("/topics?name=topic&page=2")
    assert "topic-149" in second.text and "topic-000" not in second.text


async def test_pages_of_a_topic_with_many_queues_and_of_a_group_with_many_members_are_small(
    visitor: Visitor,
) -> None:
    visitor.topic("wide", queues=500)
    offsets = {("wide", name, number): 0 for name in "ab" for number in range(500)}
    await visitor.admin.commit_offsets("billing", offsets)
    for number in range(1_000):
        await visitor.member("billing", "wide", client_id=f"member-{number}")
    for page in ("/topics/wide", "/groups/billing", "/groups/billing/reset?topic=wide&to=latest"):
        answer = await visitor.get(page)
        assert answer.status == 200 and "1,000" in answer.words
        assert len(answer.body) < 150 * 1_024, page
    first = await visitor.get("/topics/wide")
    assert "1,000 queues, page 1 of 10" in first.words
    assert 'href="?queues=2#queues"' in first.text
    last = await visitor.get("/topics/wide?queues=10")
    assert "queue=499" in last.text and "queue=499" not in first.text
    assert "1,000 members, page 2 of 10" in (await visitor.get("/groups/billing?members=2")).words


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("/topics/orders?queues=0", "queues"),
        ("/topics?type=x", "type"),
        ("/topics?page=0", "page"),
        ("/topics?page=abc", "page"),
        ("/groups?sort=size", "sort"),
        ("/messages?key=k", "topic"),
        ("/messages?topic=orders&queue=-1", "queue"),
        ("/messages?topic=orders&key=k&since=yesterday", "since"),
    ],
)
async def test_a_bad_value_names_its_field_and_the_remedy(
    address: str, field: str, visitor: Visitor
) -> None:
    response = await visitor.get(address)
    assert response.status == 400
    assert f"{field}: " in response.words
    assert "give" in response.words or "choose" in response.words or "write" in response.words


@pytest.mark.parametrize("page", ["/topics/none", "/groups/none", "/brokers/none", "/none"])
async def test_an_unknown_name_is_not_found(page: str, visitor: Visitor) -> None:
    assert (await visitor.get(page)).status == 404


async def test_an_unknown_name_is_not_called_absent_while_a_broker_is_silent(
    visitor: Visitor,
) -> None:
    visitor.transport.away = {"b"}
    response = await visitor.get("/topics/elsewhere")
    assert response.status == 200 and "Not complete" in response.words
    message = await visitor.get(f"/messages/{ID}")
    assert message.status == 404 and "b did not answer and may have it" in message.words


async def test_a_message_is_found_by_key_and_by_both_ids(visitor: Visitor) -> None:
    named = {properties.KEYS: "order-17", properties.UNIQUE_KEY: ID}
    await visitor.brokers["b"].send("orders", b'{"n": 1}', properties=named)
    found = await visitor.get("/messages?topic=orders&key=order-17")
    assert ID in found.words
    page = await visitor.get(f"/messages/{ID}")
    assert page.status == 200 and "&#34;n&#34;: 1" in page.text
    offset_message_id = page.words.partition("Offset message id ")[2].split()[0]
    again = await visitor.get(f"/messages/{offset_message_id}")
    assert again.status == 200 and named[properties.UNIQUE_KEY] in again.words


async def test_messages_are_found_by_tag_and_text_newest_first(visitor: Visitor) -> None:
    for number, tag in enumerate(("card", "cash", "card")):
        body = f"payment {number} of Zoë".encode()
        await visitor.brokers["a"].send(
            "orders", body, properties={properties.TAGS: tag, properties.KEYS: f"k-{number}"}
        )
    found = await visitor.get("/messages?topic=orders&tag=card&text=Zo%C3%AB")
    assert "2 found among 3 examined" in found.words
    assert found.words.index("k-2") < found.words.index("k-0") and "k-1" not in found.words
    every = await visitor.get("/messages?topic=orders")
    assert "3 found among 3 examined" in every.words
    none = await visitor.get("/messages?topic=orders&text=missing")
    assert "No message of orders matches." in none.words


async def test_letters_are_counted_by_reason_and_a_part_is_called_truncated(
    visitor: Visitor,
) -> None:
    for reason in ("TimeoutError", "TimeoutError", "ValueError"):
        await visitor.brokers["a"].send(
            "%DLQ%billing", b"x", properties={properties.DLQ_REASON: reason}
        )
    page = await visitor.get("/dead-letters/billing")
    assert "TimeoutError 2 67 % ValueError 1 33 %" in page.words and "Truncated" not in page.words
    only = await visitor.get("/dead-letters/billing?reason=ValueError")
    assert "1 letter of the 3 newest" in only.words
    await visitor.brokers["a"].send("%DLQ%billing", *[b"x"] * 1_000)
    page = await visitor.get("/dead-letters/billing")
    assert "over the 1,000 newest of 1,003" in page.words


async def test_reasons_that_the_bars_do_not_show_are_counted(visitor: Visitor) -> None:
    for number in range(14):
        reason = {properties.DLQ_REASON: f"Error{number}"}
        await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=reason)
    page = await visitor.get("/dead-letters/billing")
    assert "2 more with other values. The 12 most frequent are shown." in page.words


async def test_letters_are_filtered_by_reason_and_tag(visitor: Visitor) -> None:
    for reason, tag in (("OldError", "card"), ("OldError", "cash"), ("NewError", "card")):
        named = {properties.DLQ_REASON: reason, properties.TAGS: tag}
        await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=named)
    page = await visitor.get("/dead-letters/billing?reason=OldError&tag=card")
    assert "1 letter of the 3 newest" in page.words
    for chosen in ("OldError", "card"):
        assert f'<option value="{chosen}" selected>' in page.text


async def test_the_newest_letters_are_shown_also_of_large_ones(visitor: Visitor) -> None:
    for reason in (*["OldError"] * 5, "NewError"):
        await visitor.brokers["a"].send(
            "%DLQ%billing", bytes(1 << 20), properties={properties.DLQ_REASON: reason}
        )
    page = await visitor.get("/dead-letters/billing")
    assert "OldError 5 83 % NewError 1 17 %" in page.words and "Truncated" not in page.words


@pytest.mark.parametrize("page", ["/topics", "/api/v1/topics"])
async def test_a_defect_is_a_page_that_refers_to_the_log(page: str, visitor: Visitor) -> None:
    defect = AttributeError("a defect")
    visitor.transport.errors["ListTopics"] = defect  # type: ignore[assignment]

    async def logged(*given: Any) -> None:
        with pytest.raises(AttributeError):  # for the log of the server
            await visitor.app(*given)

    answer = await call(logged, "GET", page, {"host": HOST})
    assert answer.status == 500 and "its log has the error" in answer.words
    assert "content-security-policy" in answer.headers


async def test_a_query_may_have_any_name(visitor: Visitor) -> None:
    assert (await visitor.get("/topics/orders?path=1&query=2")).status == 200
    assert (await visitor.get("/topics?path=1&query=2")).status == 200


@pytest.mark.parametrize(
    ("page", "method"),
    [
        ("/messages?topic=orders&offset=0", "Pull"),
        ("/messages?topic=orders&offset=0", "GetQueueOffsets"),
        ("/clients", "ListClients"),
    ],
)
async def test_a_page_that_is_not_permitted_is_no_silence(
    page: str, method: str, visitor: Visitor
) -> None:
    visitor.transport.errors[method] = MqError(Code.NO_PERMISSION, f"you may not call {method}")
    response = await visitor.get(page)
    assert response.status == 403 and f"you may not call {method}" in response.words


async def test_a_message_shows_its_state_in_each_group(visitor: Visitor) -> None:
    named = {properties.UNIQUE_KEY: ID}
    await visitor.brokers["a"].send("orders", b"x", properties=named)
    await visitor.member("billing", "orders")
    page = await visitor.get(f"/messages/{ID}")
    assert "billing not yet" in page.words and 'href="/groups/billing"' in page.text
    await visitor.admin.commit_offsets("billing", {("orders", "a", 0): 1})
    page = await visitor.get(f"/messages/{ID}")
    assert "billing unknown" in page.words and "it consumed or skipped it" in page.words
    visitor.transport.errors["TrackMessage"] = MqError(Code.FLOW_CONTROL, "too many searches")
    page = await visitor.get(f"/messages/{ID}")
    assert page.status == 200 and "Unknown too many searches" in page.words


async def test_the_track_of_a_dead_letter_links_to_it(visitor: Visitor) -> None:
    named = {properties.UNIQUE_KEY: ID}
    await visitor.brokers["a"].send("orders", b"x", properties=named)
    await visitor.member("billing", "orders")
    origin = {properties.ORIGIN_MESSAGE_ID: named[properties.UNIQUE_KEY]}
    dead = {**named, **origin, properties.DLQ_REASON: "TimeoutError"}
    await visitor.brokers["a"].send("%DLQ%billing", b"x", properties=dead)
    page = await visitor.get(f"/messages/{ID}")
    assert "billing dead lettered dead letter" in page.words and "TimeoutError" in page.words
    assert "topic=%25DLQ%25billing&amp;broker=a&amp;queue=0&amp;offset=0" in page.text


# ---- test letters of day ----
#
# The dead letters of the last day: exact where it is known, and otherwise with the reason.


END_MS = 1_800_000_000_000 // HOUR_MS * HOUR_MS
NOW_MS = END_MS + 20 * MINUTE_MS + 5_000
DAYS_AGO_MS = END_MS - 100 * HOUR_MS


class Status:
    def __init__(self, started_ms: int = DAYS_AGO_MS, letters: int = 0) -> None:
        self.start_timestamp_ms, self.dead_letters_total = started_ms, letters


def statuses(**given: Status) -> dict[str, BrokerStatus]:
    return cast(dict[str, BrokerStatus], given)


def stats(end_ms: int | None, period_ms: int, **values: Sequence[float | None]) -> Stats:
    by_broker = {name: {"dead_lettered": tuple(each)} for name, each in values.items()}
    return Stats(
        period_ms=period_ms, end_timestamp_ms=end_ms,
        brokers=History(cluster={}, by_broker=by_broker), topics={}, groups={}, omitted={},
        unanswered={},
    )  # fmt: skip


def hours(**values: Sequence[float | None]) -> Stats:
    return stats(END_MS, HOUR_MS, **values)


def minutes(**values: Sequence[float | None]) -> Stats:
    return stats(END_MS + 20 * MINUTE_MS, MINUTE_MS, **values)


def test_hours_of_a_day_and_the_minutes_since_count() -> None:
    of_hours = hours(a=[9.0] * 24 + [0.0] * 23 + [7 / 3_600])
    of_minutes = minutes(a=[5.0] * 100 + [0.0] * 19 + [3 / 60])
    found = letters_of_day(statuses(a=Status()), of_hours, of_minutes, NOW_MS)
    assert (found.count, found.gaps) == (10, ())
    assert found.since_ms == END_MS - 24 * HOUR_MS


def test_a_broker_that_started_later_counts_since_then() -> None:
    recent = Status(END_MS - HOUR_MS, letters=5)
    of_hours = hours(a=[0.0] * 48, b=[None] * 47 + [2.0])
    of_minutes = minutes(a=[0.0] * 120, b=[2.0] * 120)
    found = letters_of_day(statuses(a=Status(), b=recent), of_hours, of_minutes, NOW_MS)
    assert found.count == 5 and found.gaps == ("only since the start of b",)


def test_an_unknown_hour_is_a_gap_and_no_zero() -> None:
    of_hours = hours(a=[0.0] * 40 + [None] + [1 / 3_600] * 7)
    found = letters_of_day(statuses(a=Status()), of_hours, minutes(a=[0.0] * 120), NOW_MS)
    assert found.count == 7 and found.gaps == ("not all hours of a",)
    of_hours, of_minutes = hours(a=[None] * 48), minutes(a=[None] * 120)
    nothing = letters_of_day(statuses(a=Status()), of_hours, of_minutes, NOW_MS)
    assert nothing.count is None and nothing.gaps


def test_without_an_answer_nothing_is_known() -> None:
    assert letters_of_day({}, None, None, NOW_MS).count is None
    assert letters_of_day(statuses(a=Status()), None, None, NOW_MS).count is None
