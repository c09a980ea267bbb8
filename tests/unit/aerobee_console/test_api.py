"""The JSON API: answers as its description says, and the rules of the pages."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from aerobee_client.admin.descriptions import PolicyDescription
from aerobee_console.web import api
from support.console.servers import Users, configured
from support.console.visitor import Response, Visitor

ID = "C00002023D65006101A28F6593060018"
DESCRIPTION: dict[str, Any] = json.loads(
    resources.files("aerobee_console").joinpath(api.FILE).read_text(encoding="utf-8")
)
READS = {
    "/session": "/session",
    "/overview": "/overview",
    "/brokers": "/brokers",
    "/brokers/{broker}": "/brokers/a",
    "/topics": "/topics?sort=lag",
    "/topics/{topic}": "/topics/orders",
    "/groups": "/groups",
    "/groups/{group}": "/groups/billing",
    "/messages": "/messages?topic=orders&key=k",
    "/queue": "/queue?topic=orders",
    "/messages/{message_id}": f"/messages/{ID}?as=text",
    "/dead-letters": "/dead-letters",
    "/dead-letters/{group}": "/dead-letters/billing",
    "/clients": "/clients",
    "/delayed": "/delayed",
    "/transactions": "/transactions",
    "/leases": "/leases?group=billing",
    "/lite": "/lite?topic=sessions",
    "/redrives": "/redrives",
    "/redrives/{job}": "/redrives/job-1",
    "/brokers/{broker}/configuration": "/brokers/a/configuration",
    "/name-servers/configuration": "/name-servers/configuration",
    "/users": "/users",
    "/users/{user}": "/users/app",
    "/quotas": "/quotas",
    "/audit": "/audit?event=change",
    "/rights": "/rights?user=app&resource=Topic:orders&action=Pub",
}
OF_NAME_SERVERS = {"/name-servers/configuration", "/users", "/quotas", "/rights"}
KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def breaches(value: Any, schema: dict[str, Any], place: str = "$") -> list[str]:
    """Where a value is not as the schema says. Only the words that the description uses."""
    if "$ref" in schema:
        schema = DESCRIPTION["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        found = [breaches(value, each, place) for each in schema["anyOf"]]
        return [] if not all(found) else min(found, key=len)
    if not schema:  # of any kind
        return []
    kinds = KINDS[schema["type"]]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return [f"{place}: {value!r} is not {schema['type']}"]
    if isinstance(value, list):
        items = schema.get("prefixItems") or [schema["items"]] * len(value)
        return [
            breach
            for number, (each, item) in enumerate(zip(value, items, strict=True))
            for breach in breaches(each, item, f"{place}[{number}]")
        ]
    if not isinstance(value, dict):
        return []
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    missing = [f"{place} lacks {name}" for name in schema.get("required", ()) if name not in value]
    unknown = [f"{place} has {name}" for name in value if name not in known and others is None]
    return [
        *missing,
        *unknown,
        *(
            breach
            for name, each in value.items()
            for breach in breaches(each, known.get(name, others or {}), f"{place}.{name}")
        ),
    ]


def described(response: Response, path: str, method: str = "get") -> Any:
    """The value of an answer, which must be as the description says."""
    responses = DESCRIPTION["paths"][api.PREFIX + path][method]["responses"]
    answer = responses["200" if response.status == 200 else "default"]
    value = json.loads(response.body)
    assert breaches(value, answer["content"]["application/json"]["schema"]) == [], path
    return value


def test_the_committed_description_is_that_of_the_code() -> None:
    assert api.openapi() == DESCRIPTION, "run python -m aerobee_console.web.api"


def test_every_function_of_the_api_is_tried() -> None:
    assert READS.keys() == api.ENDPOINTS.keys()


@pytest.mark.parametrize("away", [set(), {"b"}, {"a", "b"}], ids=["all", "one_away", "none"])
async def test_an_answer_is_as_described(away: set[str], visitor: Visitor) -> None:
    await visitor.group("shipping")
    for broker in visitor.brokers.values():
        await broker.send("orders", b'{"n": 1}', properties={"KEYS": "k", "UNIQ_KEY": ID})
        await broker.send("%DLQ%billing", b"x", properties={"DLQ_REASON": "TimeoutError"})
    await Users(visitor).add("app", PolicyDescription("Topic:orders", ("Pub",)))
    await visitor.admin.set_quota("User:app", calls=10)
    configured(visitor)
    visitor.transport.away = away
    for path, address in READS.items():
        response = await visitor.get(api.PREFIX + address)
        value = described(response, path)
        if response.status == 200 and path != "/session":
            assert value["complete"] is (not value["silent"]), path
            of_one = path.startswith("/brokers/{broker}")
            expected = (bool(away) and not of_one) or len(away) > 1
            assert bool(value["silent"]) is (expected and path not in OF_NAME_SERVERS), path


@pytest.mark.parametrize(
    ("address", "path", "status", "field"),
    [
        ("/topics?page=0", "/topics", 400, "page"),
        ("/topics?colour=red", "/topics", 400, "colour"),
        ("/messages?key=k", "/messages", 400, "topic"),
        ("/topics/none", "/topics/{topic}", 404, "topic"),
    ],
)
async def test_an_error_names_its_field(
    address: str, path: str, status: int, field: str, visitor: Visitor
) -> None:
    response = await visitor.get(api.PREFIX + address)
    assert response.status == status
    assert described(response, path)["field"] == field


async def test_an_unknown_function_is_answered_in_json(visitor: Visitor) -> None:
    response = await visitor.get(f"{api.PREFIX}/none")
    assert response.status == 404 and "message" in json.loads(response.body)


async def test_a_change_needs_the_token_and_says_what_it_did(visitor: Visitor) -> None:
    fields = {"topic": "invoices", "queues": "2"}
    assert (await visitor.api("/new-topic", fields, token="wrong")).status == 403
    made = described(await visitor.api("/new-topic", fields), "/new-topic", "post")
    assert made["texts"] == ["a: created", "b: created"] and made["incomplete"] == []


async def test_a_deletion_needs_what_its_form_showed(visitor: Visitor) -> None:
    path = "/topics/orders/delete"
    form = described(await visitor.get(api.PREFIX + path), "/topics/{topic}/delete")
    stale = {"confirm": "orders", "seen": "0"}
    assert (await visitor.api(path, stale)).status == 409
    fields = {"confirm": "orders", "seen": form["effects"]["seen"]}
    assert (await visitor.api(path, fields)).status == 200


async def test_a_reset_shows_its_queues(visitor: Visitor) -> None:
    address = f"{api.PREFIX}/groups/billing/reset?topic=orders&to=latest"
    form = described(await visitor.get(address), "/groups/{group}/reset")
    assert [queue["after"] for queue in form["effects"]["queues"]] == [0] * 4


@pytest.mark.parametrize("body", [[], "x", {"topic": 1}])
async def test_a_body_of_another_kind_is_refused(body: object, visitor: Visitor) -> None:
    assert (await visitor.api("/new-topic", body)).status == 400


async def test_the_description_is_served(visitor: Visitor) -> None:
    response = await visitor.get(f"{api.PREFIX}/{api.FILE}")
    assert json.loads(response.body) == DESCRIPTION


async def test_an_error_of_a_change_says_that_it_may_be_made(visitor: Visitor) -> None:
    visitor.transport.away = {"b"}
    part = await visitor.api("/new-topic", {"topic": "invoices"})
    assert "not changed: no answer from b" in described(part, "/new-topic", "post")["incomplete"]
    visitor.transport.away = {"a", "b"}
    answer = await visitor.api("/new-topic", {"topic": "invoices"})
    assert "may have made the change" in described(answer, "/new-topic", "post")["message"]


async def test_an_unknown_field_of_a_change_is_refused(visitor: Visitor) -> None:
    answer = await visitor.api("/new-topic", {"topic": "invoices", "colour": "red"})
    assert answer.status == 400 and json.loads(answer.body)["field"] == "colour"
