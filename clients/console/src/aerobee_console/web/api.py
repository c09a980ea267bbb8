"""The JSON API under /api/v1: the functions of the pages and of the changes.

`openapi.json` describes it. `python -m aerobee_console.web.api` writes this file, and a test
compares it with the code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aerobee_console.reading import (
    access,
    audit,
    brokers,
    clients,
    configuration,
    groups,
    held,
    jobs,
    letters,
    messages,
    overview,
    topics,
)
from aerobee_console.reading.rates import PERIODS
from aerobee_console.web import access as access_pages
from aerobee_console.web import audit as audit_pages
from aerobee_console.web import configuration as configurations
from aerobee_console.web import held as held_pages
from aerobee_console.web import jobs as job_pages
from aerobee_console.web import pages
from aerobee_console.web.actions import ACTIONS
from aerobee_console.web.console import Console, status_of
from aerobee_console.web.fields import BadField, Fields, fields_of
from aerobee_console.web.forms import CAVEAT, Action, Changed, Form, Result
from aerobee_console.web.security import TOKEN_HEADER, Refused
from aerobee_wire.status import MqError

PREFIX = "/api/v1"
FILE = "openapi.json"


@dataclass(frozen=True, slots=True)
class Session:
    """The values that a change needs. `csrf_token` is sent in the header x-csrf-token.

    `user` is the user who has logged in, or "" if the console has no login.
    """

    csrf_token: str
    read_only: bool
    user: str


@dataclass(frozen=True, slots=True)
class Problem:
    """An error. `field` is the field with an invalid value, or ""."""

    message: str
    field: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A function of the API that reads. `query` has the descriptions of its parameters."""

    summary: str
    result: type
    call: Callable[[Console, Mapping[str, str], Fields], Awaitable[Any]]
    query: Mapping[str, str] = field(default_factory=dict)


PERIOD = {"period": f"The period of a value in the charts: {', '.join(PERIODS)}."}
OPTIONS = {
    "key": "Only options whose key contains this text.",
    "changed": "yes: only options that do not have their default.",
}
PAGE = {"page": "The number of the page, from 1 on."}
ENDPOINTS: dict[str, Endpoint] = {
    "/session": Endpoint(
        "Return the token for changes.",
        Session,
        lambda console, _, __: _session(console),
    ),
    "/overview": Endpoint(
        "Return the messages that wait, and the findings of the checks.",
        overview.Overview,
        lambda console, _, given: pages.overview_of(console, given),
        PERIOD,
    ),
    "/brokers": Endpoint(
        "Return all brokers.",
        brokers.BrokerList,
        lambda console, _, __: brokers.broker_list(console.source),
    ),
    "/brokers/{broker}": Endpoint(
        "Return one broker.",
        brokers.BrokerPage,
        lambda console, names, _: brokers.broker_page(console.source, names["broker"]),
    ),
    "/topics": Endpoint(
        "Return a page of topics.",
        topics.TopicList,
        lambda console, _, given: pages.topics_of(console, given),
        {
            "name": "Only topics whose name contains this text.",
            "type": "Only topics of this type.",
            "derived": "yes: also retry and dead-letter topics.",
            "sort": f"One of {', '.join(topics.SORTS)}.",
            **PAGE,
        },
    ),
    "/topics/{topic}": Endpoint(
        "Return one topic.",
        topics.TopicPage,
        lambda console, names, given: pages.topic_of(console, names["topic"], given),
        PERIOD,
    ),
    "/groups": Endpoint(
        "Return a page of groups.",
        groups.GroupList,
        lambda console, _, given: pages.groups_of(console, given),
        {
            "name": "Only groups whose name contains this text.",
            "sort": f"One of {', '.join(groups.SORTS)}.",
            **PAGE,
        },
    ),
    "/groups/{group}": Endpoint(
        "Return one group.",
        groups.GroupPage,
        lambda console, names, given: pages.group_of(console, names["group"], given),
        PERIOD,
    ),
    "/messages": Endpoint(
        "Return the newest messages of a topic that meet all conditions.",
        messages.MessageList,
        lambda console, _, given: pages.messages_of(console, given),
        {
            "topic": "The topic.",
            "key": "A key of the messages.",
            "tag": "A tag, or several: a || b.",
            "text": "Text that the body contains.",
            "since": "The earliest store time: a time, or an age such as 24h.",
            "until": "The latest store time: a time, or an age such as 24h.",
        },
    ),
    "/queue": Endpoint(
        "Return a part of a queue.",
        messages.QueuePage,
        lambda console, _, given: pages.queue_of(console, given),
        {
            "topic": "The topic.",
            "broker": "The broker of the queue. Default: that of the newest message.",
            "queue": "The id of the queue.",
            "offset": "The first offset. Default: so that the newest message is the last one.",
        },
    ),
    "/messages/{message_id}": Endpoint(
        "Return one message.",
        messages.MessagePage,
        lambda console, names, given: pages.message_of(console, names["message_id"], given),
        {"as": "The format of the body: text, json or hex."},
    ),
    "/dead-letters": Endpoint(
        "Return the groups that have dead letters.",
        letters.LetterGroups,
        lambda console, _, given: pages.letter_groups_of(console, given),
        {"name": "Only groups whose name contains this text.", **PAGE},
    ),
    "/dead-letters/{group}": Endpoint(
        "Return the newest dead letters of a group.",
        letters.Letters,
        lambda console, names, given: pages.letters_of(console, names["group"], given),
        {"reason": "Only letters with this reason.", "tag": "Only letters with this tag."},
    ),
    "/clients": Endpoint(
        "Return a page of clients.",
        clients.ClientList,
        lambda console, _, given: pages.clients_of(console, given),
        {
            "text": "Only clients whose id, address, proxy, user or software contains this text.",
            "group": "Only producers and consumers of this group.",
            "topic": "Only clients that subscribe or publish to this topic.",
            "user": "Only clients whose calls this user signs.",
            **PAGE,
        },
    ),
    "/delayed": Endpoint(
        "Return the delayed messages that are due next.",
        held.DelayedList,
        lambda console, _, given: held_pages.delayed_of(console, given),
        {"topic": "Only messages for this topic."},
    ),
    "/transactions": Endpoint(
        "Return the oldest open transactions.",
        held.TransactionList,
        lambda console, _, given: held_pages.transactions_of(console, given),
        {
            "topic": "Only transactions with a message for this topic.",
            "group": "Only transactions of this producer group.",
        },
    ),
    "/leases": Endpoint(
        "Return the oldest leases of a group, or the groups that have leases.",
        held.LeaseList,
        lambda console, _, given: held_pages.leases_of(console, given),
        {
            "group": "The consumer group.",
            "topic": "Only messages of this topic.",
            "client": "Only messages that this client received.",
        },
    ),
    "/lite": Endpoint(
        "Return lite topics and their subscribers, or the names of their parents.",
        held.LiteList,
        lambda console, _, given: held_pages.lite_of(console, given),
        {"topic": "The parent topic.", "group": "The consumer group whose lag is returned."},
    ),
    "/redrives": Endpoint(
        "Return a page of jobs over dead letters, the newest first.",
        jobs.JobList,
        lambda console, _, given: job_pages.jobs_of(console, given),
        {
            "group": "Only jobs of this group.",
            "state": f"Only jobs in this state: {', '.join(job_pages.STATES)}.",
            **PAGE,
        },
    ),
    "/redrives/{job}": Endpoint(
        "Return one job, and the letters that it could not send.",
        jobs.JobPage,
        lambda console, names, _: jobs.job_page(console.source, names["job"]),
    ),
    "/users": Endpoint(
        "Return a page of users, without secrets.",
        access.UserList,
        lambda console, _, given: access_pages.users_of(console, given),
        {"name": "Only users whose name contains this text.", **PAGE},
    ),
    "/users/{user}": Endpoint(
        "Return one user and its policies, without secrets.",
        access.UserPage,
        lambda console, names, _: access.user_page(console.source, names["user"]),
    ),
    "/quotas": Endpoint(
        "Return a page of quotas.",
        access.QuotaList,
        lambda console, _, given: access_pages.quotas_of(console, given),
        {"subject": "Only quotas whose subject contains this text.", **PAGE},
    ),
    "/rights": Endpoint(
        "Return whether a user may do something, and which policy decides.",
        access.Right,
        lambda console, _, given: access_pages.right_of(console, given),
        {
            "user": "The user.",
            "resource": "One resource, such as Topic:orders.",
            "action": f"One of {', '.join(access_pages.TESTED)}.",
            "source_ip": "The address of the client. Default: an unknown one.",
        },
    ),
    "/audit": Endpoint(
        "Return lines of the audit logs of name servers and brokers, the newest first.",
        audit.AuditList,
        lambda console, _, given: audit_pages.audit_of(console, given),
        {
            "server": "Only this server: its address, or the name of a broker.",
            "event": f"Only lines with this event: {', '.join(audit.EVENTS)}.",
            "user": "Only lines with this user, claimed user, or URI of a certificate.",
            "rpc": "Only lines with this RPC, such as DeleteTopic.",
            "resource": "Only lines with this resource. A * at the end stands for any text.",
            "result": "Only lines with this result: OK, or the code of an error.",
            "since": "Only lines since this time: a time, or an age such as 24h.",
            "until": "Only lines before this time. `older_before_ms` gives the next page.",
        },
    ),
    "/brokers/{broker}/configuration": Endpoint(
        "Return the options of each replica of a broker.",
        configuration.Configuration,
        configurations.configuration_of,
        OPTIONS,
    ),
    "/name-servers/configuration": Endpoint(
        "Return the options of each name server.",
        configuration.Configuration,
        configurations.configuration_of,
        OPTIONS,
    ),
}


async def _session(console: Console) -> Session:
    return Session(console.guard.token, console.options.read_only, console.user)


# ---- requests ----


async def read(request: Request, console: Console, endpoint: Endpoint) -> Response:
    """Answer a request that reads."""
    fields = fields_of(request)
    fields.check_known(endpoint.query)
    found = await endpoint.call(console, request.path_params, fields)
    return JSONResponse(plain(found))


async def change(request: Request, console: Console, action: Action) -> Response:
    """Answer a request for the form of a change, or make the change."""
    names = request.path_params
    if request.method != "POST":
        form = await action.form(console, names, fields_of(request))
        return JSONResponse(plain(form))
    console.guard.check_origin(request.headers)
    console.guard.check_token(request.headers.get(TOKEN_HEADER, ""))
    try:
        values = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        raise BadField("body", "it is not JSON: send an object of texts") from None
    if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
        raise BadField("body", "send an object whose values are texts")
    fields = Fields(values)
    fields.check_unicode()
    fields.check_known(action.known)
    try:
        return JSONResponse(plain(await action.perform(console, names, fields)))
    except MqError as error:
        return _problem(status_of(error), f"{error.message}; {CAVEAT}", error.about)


async def description(_: Request, console: Console) -> Response:
    """Return the description of the API."""
    text = resources.files("aerobee_console").joinpath(FILE).read_text(encoding="utf-8")
    base = console.options.base_path
    if base:
        return JSONResponse({**json.loads(text), "servers": [{"url": base}]})
    return Response(text, media_type="application/json")


def problem(error: Exception) -> Response | None:
    """Return the answer for an error, or None if it is not an error of a request."""
    if isinstance(error, BadField):
        return _problem(400, error.message, error.field)
    if isinstance(error, Refused):
        return _problem(403, str(error))
    if isinstance(error, Changed):
        return _problem(409, str(error))
    if isinstance(error, MqError):
        return _problem(status_of(error), error.message, error.about)
    if isinstance(error, HTTPException):
        return _problem(error.status_code, str(error.detail))
    return None


def _problem(status: int, message: str, field: str = "") -> Response:
    return JSONResponse(plain(Problem(message, field)), status)


# ---- values as JSON ----


def plain(value: Any) -> Any:
    """Convert a result to JSON: the fields and properties of dataclasses, as objects."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name, _ in _members(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def _members(kind: type) -> list[tuple[str, Any]]:
    """Return the names and types of the fields and properties of a dataclass."""
    hints = get_type_hints(kind)
    found = [(each.name, hints[each.name]) for each in fields(kind)]
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, property) and not name.startswith("_"):
                found.append((name, get_type_hints(member.fget)["return"]))
    return list(dict(found).items())


# ---- the description ----


def openapi() -> dict[str, Any]:
    """Return the description of the API in the format of OpenAPI 3.1."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for path, endpoint in ENDPOINTS.items():
        query = [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
            for name, text in endpoint.query.items()
        ]
        operation = _operation(path, endpoint.summary, endpoint.result, schemas, query)
        paths[PREFIX + path] = {"get": operation}
    for path, action in ACTIONS.items():
        summary = (action.perform.__doc__ or "").partition("\n")[0]
        made = _operation(path, summary, Result, schemas)
        made["requestBody"] = {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {name: {"type": "string"} for name in action.known},
                        "additionalProperties": False,
                    }
                }
            },
        }
        made["parameters"].append(
            {"name": TOKEN_HEADER, "in": "header", "required": True, "schema": {"type": "string"}}
        )
        form = _operation(path, "Return the fields and the consequences.", Form, schemas)
        paths[PREFIX + path] = {"get": form, "post": made}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Aerobee console",
            "version": "1",
            "description": "The pages and changes of the console as JSON.",
        },
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _operation(
    path: str,
    summary: str,
    result: type,
    schemas: dict[str, Any],
    query: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return {
        "summary": summary,
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ),
            *query,
        ],
        "responses": {
            "200": _response("The result.", result, schemas),
            "default": _response("An error.", Problem, schemas),
        },
    }


def _response(text: str, kind: type, schemas: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": _schema(kind, schemas)}}
    return {"description": text, "content": content}


# The types of values. Any may have any.
_SCALARS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    Any: "",
}


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]} if _SCALARS[kind] else {}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(each, schemas) for each in arguments]}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [_schema(each, schemas) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], schemas)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": _schema(arguments[0], schemas)}
    assert is_dataclass(kind) and isinstance(kind, type), f"no schema for {kind}"
    if kind.__name__ not in schemas:
        schemas[kind.__name__] = {}  # a type may contain itself
        members = {name: _schema(hint, schemas) for name, hint in _members(kind)}
        schemas[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").partition("\n")[0],
            "properties": members,
            "required": list(members),
        }
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def text() -> str:
    """Return the content of the file that describes the API."""
    return json.dumps(openapi(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(str(resources.files("aerobee_console").joinpath(FILE))).write_text(
        text(), encoding="utf-8"
    )
    sys.exit(0)
