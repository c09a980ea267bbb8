"""The pages. A page reads its address, asks for one answer, and renders it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from aerobee_client.admin.topics import MESSAGE_TYPES
from aerobee_console.reading import brokers, clients, groups, letters, messages, overview, topics
from aerobee_console.reading.rates import DEFAULT_PERIOD, PERIODS
from aerobee_console.reading.text import FORMATS
from aerobee_console.web import access, audit, configuration, held, jobs
from aerobee_console.web.console import Console
from aerobee_console.web.fields import BadField, Fields, fields_of
from aerobee_console.web.paths import part
from aerobee_console.web.render import link

Page = Callable[[Request, Console], Awaitable[Response]]
# The class of each state of a message in a group.
TRACK_STATES = {
    "UNKNOWN": "unknown",
    "NOT_YET": "soft",
    "READY": "soft",
    "ON_LEASE": "warn",
    "RETRYING": "warn",
    "CONSUMED": "yes",
    "FILTERED": "soft",
    "SKIPPED": "warn",
    "DEAD_LETTERED": "no",
    "EXPIRED": "no",
}


async def show_overview(request: Request, console: Console) -> Response:
    found = await overview_of(console, fields_of(request))
    return console.page(
        request, "overview.html.j2", tab="overview", live=True, page=found, periods=PERIODS
    )


def period_of(fields: Fields) -> str:
    return fields.choice("period", PERIODS, DEFAULT_PERIOD)


async def overview_of(console: Console, fields: Fields) -> overview.Overview:
    return await overview.overview(
        console.source, console.doctor, period_of(fields), audit=console.options.audit
    )


async def show_brokers(request: Request, console: Console) -> Response:
    found = await brokers.broker_list(console.source)
    return console.page(request, "brokers.html.j2", tab="brokers", live=True, page=found)


async def show_broker(request: Request, console: Console) -> Response:
    found = await brokers.broker_page(console.source, request.path_params["broker"])
    return console.page(request, "broker.html.j2", tab="brokers", live=True, page=found)


async def show_topics(request: Request, console: Console) -> Response:
    return console.page(
        request,
        "topics.html.j2",
        tab="topics",
        live=True,
        page=await topics_of(console, fields_of(request)),
        types=MESSAGE_TYPES,
        sorts=topics.SORTS,
    )


async def topics_of(console: Console, fields: Fields) -> topics.TopicList:
    return await topics.topic_list(
        console.source,
        name=fields.text("name"),
        message_type=fields.choice("type", MESSAGE_TYPES),
        derived=fields.switch("derived"),
        sort=fields.choice("sort", topics.SORTS, "name"),
        page=fields.page(),
    )


async def show_topic(request: Request, console: Console) -> Response:
    found = await topic_of(console, request.path_params["topic"], fields_of(request))
    return console.page(
        request, "topic.html.j2", tab="topics", live=True, page=found, periods=PERIODS
    )


async def topic_of(console: Console, topic: str, fields: Fields) -> topics.TopicPage:
    return await topics.topic_page(console.source, topic, period_of(fields))


async def show_groups(request: Request, console: Console) -> Response:
    found = await groups_of(console, fields_of(request))
    return console.page(
        request, "groups.html.j2", tab="groups", live=True, page=found, sorts=groups.SORTS
    )


async def groups_of(console: Console, fields: Fields) -> groups.GroupList:
    return await groups.group_list(
        console.source,
        name=fields.text("name"),
        sort=fields.choice("sort", groups.SORTS, "name"),
        page=fields.page(),
    )


async def show_group(request: Request, console: Console) -> Response:
    found = await group_of(console, request.path_params["group"], fields_of(request))
    return console.page(
        request, "group.html.j2", tab="groups", live=True, page=found, periods=PERIODS
    )


async def group_of(console: Console, group: str, fields: Fields) -> groups.GroupPage:
    return await groups.group_page(console.source, group, period_of(fields))


async def show_messages(request: Request, console: Console) -> Response:
    fields = fields_of(request)
    message_id, topic = fields.text("id"), fields.text("topic")
    if message_id:
        return RedirectResponse(link(f"/messages/{part(message_id)}"), 303)
    if not topic and any(fields.text(name) for name in ("key", "tag", "text")):
        raise BadField("topic", "a search needs a topic: give the topic of the message")
    found: Any = None
    queue: Any = None
    if topic and any(fields.text(name) for name in ("broker", "queue", "offset")):
        queue = await queue_of(console, fields)
    elif topic:
        found = await messages_of(console, fields)
    return console.page(
        request,
        "messages.html.j2",
        tab="messages",
        # A search by text reads the messages of a topic, so it is repeated only by hand.
        live=bool(topic) and not fields.text("text"),
        page=found or queue,
        found=found,
        queue=queue,
    )


async def messages_of(console: Console, fields: Fields) -> messages.MessageList:
    if fields.text("text") and (reason := console.options.no_text_search):
        raise BadField("text", f"{reason}: search by key, tag or time")
    now_ms = console.source.now_ms()
    return await messages.search(
        console.source,
        fields.required("topic"),
        key=fields.text("key"),
        tag=fields.text("tag"),
        text=fields.text("text"),
        since_ms=fields.moment("since", now_ms),
        until_ms=fields.moment("until", now_ms),
    )


async def queue_of(console: Console, fields: Fields) -> messages.QueuePage:
    return await messages.queue_page(
        console.source,
        fields.required("topic"),
        broker_name=fields.text("broker"),
        queue_id=fields.number("queue"),
        offset=fields.number("offset"),
    )


async def show_message(request: Request, console: Console) -> Response:
    found = await message_of(console, request.path_params["message_id"], fields_of(request))
    return console.page(
        request, "message.html.j2", tab="messages", page=found, formats=FORMATS,
        track_states=TRACK_STATES,
    )  # fmt: skip


async def message_of(console: Console, message_id: str, fields: Fields) -> messages.MessagePage:
    return await messages.message_page(
        console.source,
        message_id,
        body_format=fields.choice("as", FORMATS),
        bodies=console.options.bodies,
    )


async def download_body(request: Request, console: Console) -> Response:
    message_id = request.path_params["message_id"]
    if not console.options.bodies:
        raise BadField("body", "the console runs with --no-bodies")
    body = await messages.whole_body(console.source, message_id)
    name = "".join(each for each in message_id if each.isalnum())[:64]
    headers = {"content-disposition": f'attachment; filename="{name}.bin"'}
    return Response(body, media_type="application/octet-stream", headers=headers)


async def show_letter_groups(request: Request, console: Console) -> Response:
    found = await letter_groups_of(console, fields_of(request))
    return console.page(request, "letter_groups.html.j2", tab="dead-letters", live=True, page=found)


async def letter_groups_of(console: Console, fields: Fields) -> letters.LetterGroups:
    return await letters.letter_groups(console.source, name=fields.text("name"), page=fields.page())


async def show_letters(request: Request, console: Console) -> Response:
    found = await letters_of(console, request.path_params["group"], fields_of(request))
    return console.page(request, "letters.html.j2", tab="dead-letters", live=True, page=found)


async def letters_of(console: Console, group: str, fields: Fields) -> letters.Letters:
    return await letters.letters(
        console.source,
        group,
        reason=fields.text("reason") if "reason" in fields else None,
        tag=fields.text("tag") if "tag" in fields else None,
    )


async def show_clients(request: Request, console: Console) -> Response:
    found = await clients_of(console, fields_of(request))
    return console.page(request, "clients.html.j2", tab="clients", live=True, page=found)


async def clients_of(console: Console, fields: Fields) -> clients.ClientList:
    return await clients.client_list(
        console.source,
        text=fields.text("text"),
        group=fields.text("group"),
        topic=fields.text("topic"),
        user=fields.text("user"),
        page=fields.page(),
    )


async def show_keys(request: Request, console: Console) -> Response:
    return console.page(request, "keys.html.j2", tab="", page=None)


PAGES: dict[str, Page] = {
    "/": show_overview,
    "/brokers": show_brokers,
    "/brokers/{broker}": show_broker,
    "/topics": show_topics,
    "/topics/{topic}": show_topic,
    "/groups": show_groups,
    "/groups/{group}": show_group,
    "/messages": show_messages,
    "/messages/{message_id}": show_message,
    "/messages/{message_id}/body": download_body,
    "/dead-letters": show_letter_groups,
    "/dead-letters/{group}": show_letters,
    "/clients": show_clients,
    "/keys": show_keys,
    **access.PAGES,
    **audit.PAGES,
    **held.PAGES,
    **jobs.PAGES,
    **configuration.PAGES,
}
