"""The changes of topics, groups, dead letters and brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from aerobee_cli.offsets import ResetTarget, reset_target
from aerobee_cli.options import BadOption
from aerobee_cli.settings import MessageType, Order, Permission, group_arguments, topic_arguments
from aerobee_client import AsyncProducer, Message
from aerobee_client.admin.descriptions import Created, Update
from aerobee_client.admin.letters import LetterJobSpec
from aerobee_client.admin.redriving.letter_job import GroupLetterJob, reads_retries
from aerobee_console.reading.effects import (
    Effects,
    ResetEffects,
    drain,
    figure,
    group_deletion,
    offset_clone,
    offset_reset,
    promotion,
    redrive,
    topic_deletion,
)
from aerobee_console.reading.groups import group_page
from aerobee_console.web import access, configuration, held, jobs
from aerobee_console.web.console import Console, status_of
from aerobee_console.web.fields import BadField, Fields, fields_of, joined
from aerobee_console.web.forms import (
    CAVEAT,
    CONFIRM,
    SEEN,
    WAS,
    Action,
    Changed,
    Form,
    Input,
    Result,
    changed_settings,
    confirmed,
    not_changed,
    setting,
    unchanged,
)
from aerobee_console.web.once import FORM_FIELD
from aerobee_console.web.paths import part
from aerobee_console.web.security import TOKEN_FIELD
from aerobee_wire.status import Code, MqError

# The producer group of the test messages.
PRODUCER_GROUP = "aerobee-console"


async def show(request: Request, console: Console, action: Action) -> Response:
    """Answer a request for a form, or a form that was sent."""
    names: Mapping[str, str] = request.path_params
    if request.method != "POST":
        fields = fields_of(request)
        try:
            form = await action.form(console, names, fields)
        except BadField as error:
            try:
                empty = await action.form(console, names, Fields({}))
            except BadField:  # the form is not for any value
                raise error from None
            return _render(request, console, action, empty, fields, error=error)
        return _render(request, console, action, form, fields)
    console.guard.check_origin(request.headers)
    try:
        values = joined(parse_qsl((await request.body()).decode(), keep_blank_values=True))
    except ValueError:
        raise BadField("body", "it is not a form in UTF-8: use the form of the console") from None
    console.guard.check_token(values.pop(TOKEN_FIELD, ""))
    form_id = values.pop(FORM_FIELD, "")
    fields = Fields(values)
    fields.check_known(action.known)
    try:
        result = await console.once.perform(
            form_id, request.url.path, values, lambda: action.perform(console, names, fields)
        )
    except (BadField, Changed, MqError) as error:
        form = await action.form(console, names, fields)
        return _render(request, console, action, form, fields, error=error)
    return console.page(request, "result.html.j2", tab=action.tab, page=None, result=result)


def _render(
    request: Request,
    console: Console,
    action: Action,
    form: Form,
    fields: Fields,
    *,
    error: Exception | None = None,
) -> Response:
    status, message = 200, ""
    title = "Nothing was changed" if request.method == "POST" else "Invalid value"
    given = fields
    if isinstance(error, BadField):
        status, message = 400, error.message
    elif isinstance(error, Changed):
        status, message = 409, str(error)
        given = Fields({})  # the form has the values of now
    elif isinstance(error, MqError):
        status, message = status_of(error), f"{error.message}; {CAVEAT}"
        title = "The change failed"
    return console.page(
        request,
        "form.html.j2",
        status=status,
        tab=action.tab,
        page=form.effects,
        form=form,
        values={each.name: given.given(each.name, each.value) for each in form.inputs}
        | {WAS + each.name: given.given(WAS + each.name, each.was)
           for each in form.inputs if each.was is not None},
        message=message,
        problem_title=title,
        bad_field=error.field if isinstance(error, BadField) else "",
    )  # fmt: skip


# ---- settings ----


def _settings(
    read: Callable[[Mapping[str, Any]], dict[str, Any]], fields: Fields, names: Sequence[str]
) -> dict[str, Any]:
    """Return the arguments of an admin client for the fields that are not empty."""
    arguments: dict[str, Any] = {}
    for name in names:
        value = fields.text(name)
        if value:
            try:
                arguments |= read({name: value})
            except BadOption as error:
                raise BadField(name, error.message) from None
    return arguments


def _shared(
    name: str, label: str, values: Mapping[str, str], choices: Sequence[str] = (), **more: Any
) -> Input:
    """Return the input of a setting, whose `values` are by broker name.

    If the brokers differ, the input is empty and shows their values. An empty input changes
    nothing, and a value is set on every broker. So a change that did not reach a broker can be
    repeated.
    """
    first, *others = set(values.values())
    if not others:
        return setting(name, label, first, choices, **more)
    different = ", ".join(f"{value or 'empty'} at {broker}" for broker, value in values.items())
    more |= {"hint": f"{different}; empty leaves them", "required": False}
    return setting(name, label, "", choices, **more)


def _unknown(silent: Sequence[MqError]) -> list[str]:
    """Return a note for each broker whose settings the form does not have."""
    return [f"The settings at {each.broker_name} are unknown: {each.message}." for each in silent]


# ---- topics ----

TYPES = tuple(each.value for each in MessageType)
PERMISSIONS = tuple(each.value for each in Permission)
TOPIC_SETTINGS = ("read_queues", "write_queues", "permission", "type")


async def _new_topic_form(_: Console, __: Mapping[str, str], ___: Fields) -> Form:
    return Form(
        title="Create a topic",
        submit="Create",
        back="/topics",
        inputs=(
            Input(name="topic", label="Name", required=True),
            Input(name="queues", label="Queues", kind="number", value="8", hint="on each broker"),
            Input(name="type", label="Type", kind="choice", value="normal", choices=TYPES),
        ),
        notes=("The topic is created on every broker.",),
    )


async def _create_topic(console: Console, _: Mapping[str, str], fields: Fields) -> Result:
    """Create a topic on every broker."""
    topic = fields.required("topic")
    arguments = _settings(topic_arguments, fields, ("queues", "type"))
    silent: list[MqError] = []
    made = await console.source.admin.create_topic(topic, **arguments, silent=silent)
    return _created(f"Topic {topic}", made, silent, f"/topics/{part(topic)}")


def _created(title: str, made: Sequence[Created], silent: Sequence[MqError], back: str) -> Result:
    unreachable = sorted({each for there in made for each in there.unreachable_namesrvs})
    return Result(
        title=f"{title} exists",
        texts=[
            f"{there.broker_name}: "
            + ("created" if there.created else "existed already with these settings")
            for there in made
        ],
        incomplete=[
            *not_changed(silent),
            *(
                f"the name server {address} was not reached: it learns of the topic from the next "
                "registration of the brokers"
                for address in unreachable
            ),
        ],
        back=back,
    )


async def _topic_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    topic = names["topic"]
    silent: list[MqError] = []
    found = await console.source.admin.get_topic(topic, silent=silent)
    there = {each.broker_name: each for each in found.brokers}
    permissions = {6: "rw", 4: "r", 2: "w"}
    return Form(
        title=f"Change {topic}",
        submit="Change",
        back=f"/topics/{part(topic)}",
        inputs=(
            _shared("read_queues", "Read queues",
                    {name: str(each.read_queue_count) for name, each in there.items()},
                    kind="number", hint="on each broker", required=True),
            _shared("write_queues", "Write queues",
                    {name: str(each.write_queue_count) for name, each in there.items()},
                    kind="number", hint="on each broker", required=True),
            _shared("permission", "Permission",
                    {name: permissions.get(each.permission, "") for name, each in there.items()},
                    PERMISSIONS, kind="choice"),
            setting("type", "Type", found.message_type.lower(), TYPES, kind="choice"),
            Input(name=CONFIRM, label="Name of the topic",
                  hint="only for a change that makes messages unreadable"),
        ),
        notes=_unknown(silent),
    )  # fmt: skip


async def _update_topic(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Change the settings of a topic."""
    topic = names["topic"]
    admin = console.source.admin
    arguments = changed_settings(topic_arguments, fields, await _topic_form(console, names, fields))
    if not arguments:
        return _updated(f"Topic {topic}", Update(()), (), f"/topics/{part(topic)}")
    silent: list[MqError] = []
    would = await admin.update_topic(topic, **arguments, dry_run=True, silent=silent)
    force = bool(would.unreadable)
    if force and fields.text(CONFIRM) != topic:
        lost = ", ".join(
            f"{each.messages:,} in queue {each.queue_id} of {each.broker_name}"
            for each in would.unreadable
        )
        raise BadField(
            CONFIRM, f"messages would become unreadable ({lost}): type {topic} to do it anyway"
        )
    made = await admin.update_topic(topic, **arguments, force=force, silent=silent)
    return _updated(f"Topic {topic}", made, silent, f"/topics/{part(topic)}")


def _updated(title: str, made: Update, silent: Sequence[MqError], back: str) -> Result:
    return Result(
        title=f"{title} was changed" if made.changes else f"{title} had these settings already",
        texts=[
            f"{each.broker_name}: {each.option} {' → '.join(each.texts)}" for each in made.changes
        ],
        incomplete=[
            *not_changed(silent),
            *(
                f"the name server {address} was not reached: it learns of the change from the next "
                "registration of the brokers"
                for address in made.unreachable_namesrvs
            ),
        ],
        back=back,
    )


async def _delete_topic_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    topic = names["topic"]
    return Form(
        title=f"Delete {topic}",
        submit="Delete the topic",
        back=f"/topics/{part(topic)}",
        effects=await topic_deletion(console.source, topic),
        confirm=topic,
        danger=True,
        notes=("The messages and the offsets of all groups in the topic are deleted for good.",),
    )


async def _delete_topic(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Delete a topic on every broker."""
    topic = names["topic"]
    confirmed(fields, topic)
    unchanged(fields, await topic_deletion(console.source, topic))
    silent: list[MqError] = []
    await console.source.admin.delete_topic(topic, silent=silent)
    return _deleted(f"Topic {topic}", silent, "/topics")


def _deleted(title: str, silent: Sequence[MqError], back: str) -> Result:
    where = "the brokers that answer" if silent else "every broker"
    return Result(
        title=f"{title} was deleted on {where}", incomplete=not_changed(silent), back=back
    )


async def _send_form(_: Console, names: Mapping[str, str], __: Fields) -> Form:
    topic = names["topic"]
    return Form(
        title=f"Send a message to {topic}",
        submit="Send",
        back=f"/topics/{part(topic)}",
        inputs=(
            Input(name="body", label="Body", kind="area", required=True),
            Input(name="tag", label="Tag"),
            Input(name="keys", label="Keys", hint="separated by spaces"),
            Input(name="message_group", label="Message group"),
        ),
        notes=("Every group that reads the topic receives the message.",),
    )


async def _send(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Send a message."""
    topic = names["topic"]
    body = fields.given("body")
    if not body:
        raise BadField("body", "it is empty: give at least one character")
    message = Message(
        topic,
        body.encode(),
        tag=fields.text("tag"),
        keys=fields.text("keys").split(),
        message_group=fields.text("message_group"),
    )
    async with AsyncProducer(
        PRODUCER_GROUP, namesrv=console.options.namesrvs, credentials=console.credentials
    ) as producer:
        sent = await producer.send(message)
    return Result(
        title="The message was sent",
        texts=[
            f"{sent.queue.broker_name}, queue {sent.queue.queue_id}, offset {sent.queue_offset:,}"
        ],
        back=f"/topics/{part(topic)}",
        links={"Show the message": f"/messages/{part(sent.offset_message_id)}"},
    )


# ---- groups ----

ORDERS = tuple(each.value for each in Order)
GROUP_SETTINGS = ("max_attempts", "retry_delays", "order", "consume")
NEW_GROUP_FIELDS = ("max_attempts", "retry_delays", "order")


async def _new_group_form(_: Console, __: Mapping[str, str], ___: Fields) -> Form:
    return Form(
        title="Create a group",
        submit="Create",
        back="/groups",
        inputs=(
            Input(name="group", label="Name", required=True),
            Input(name="max_attempts", label="Maximum attempts", kind="number", value="17",
                  hint="deliveries before a message is dead-lettered"),
            Input(name="retry_delays", label="Retry delays",
                  hint="such as 1s,5s,30s; empty for the broker's delay levels"),
            Input(name="order", label="Order", kind="choice", value="auto", choices=ORDERS),
        ),
        notes=("The group is created on every broker.",),
    )  # fmt: skip


async def _create_group(console: Console, _: Mapping[str, str], fields: Fields) -> Result:
    """Create a group on every broker."""
    group = fields.required("group")
    arguments = _settings(group_arguments, fields, NEW_GROUP_FIELDS)
    silent: list[MqError] = []
    made = await console.source.admin.create_group(group, **arguments, silent=silent)
    return _created(f"Group {group}", made, silent, f"/groups/{part(group)}")


async def _group_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    group = names["group"]
    silent: list[MqError] = []
    every = await console.source.admin.groups_of_brokers(silent=silent)
    there = {
        name: each
        for name, groups in every.items()
        for each in groups
        if each.consumer_group == group
    }
    if not there:
        where = " that answers" if silent else ""
        raise MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker{where} has the group {group}")
    notes = _unknown(silent)
    if any(each.exponential_retry for each in there.values()):
        notes.append("The group has an exponential retry policy. Retry delays would replace it.")
    return Form(
        title=f"Change {group}",
        submit="Change",
        back=f"/groups/{part(group)}",
        inputs=(
            _shared("max_attempts", "Maximum attempts",
                    {name: str(each.max_attempts) for name, each in there.items()},
                    kind="number", hint="deliveries before a message is dead-lettered",
                    required=True),
            _shared("retry_delays", "Retry delays",
                    {name: ",".join(f"{ms}ms" for ms in each.retry_delays_ms)
                     for name, each in there.items()},
                    hint="such as 1s,5s,30s; empty for the broker's delay levels"),
            _shared("order", "Order", {name: each.order for name, each in there.items()},
                    ORDERS, kind="choice"),
            _shared("consume", "May consume",
                    {name: str(each.consume_enable).lower() for name, each in there.items()},
                    ("true", "false"), kind="choice", hint="false pauses the group"),
        ),
        notes=notes,
    )  # fmt: skip


async def _update_group(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Change the settings of a group."""
    group = names["group"]
    arguments = changed_settings(group_arguments, fields, await _group_form(console, names, fields))
    if not arguments:
        return _updated(f"Group {group}", Update(()), (), f"/groups/{part(group)}")
    silent: list[MqError] = []
    made = await console.source.admin.update_group(group, **arguments, silent=silent)
    return _updated(f"Group {group}", made, silent, f"/groups/{part(group)}")


async def _delete_group_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    group = names["group"]
    return Form(
        title=f"Delete {group}",
        submit="Delete the group",
        back=f"/groups/{part(group)}",
        effects=await group_deletion(console.source, group),
        confirm=group,
        danger=True,
        notes=("The settings, the offsets and the retries of the group are deleted for good.",),
    )


async def _delete_group(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Delete a group on every broker."""
    group = names["group"]
    confirmed(fields, group)
    unchanged(fields, await group_deletion(console.source, group))
    silent: list[MqError] = []
    await console.source.admin.delete_group(group, silent=silent)
    return _deleted(f"Group {group}", silent, "/groups")


async def _reset_form(console: Console, names: Mapping[str, str], fields: Fields) -> Form:
    group = names["group"]
    found: ResetEffects | None = None
    topic, to = fields.text("topic"), fields.text("to")
    if topic and to:
        found = await offset_reset(console.source, group, topic, _target(to))
    kind = "fixed" if found else "text"
    return Form(
        title=f"Reset offsets of {group}",
        submit="Reset the offsets" if found else "Show the consequences",
        back=f"/groups/{part(group)}",
        inputs=(
            Input(name="topic", label="Topic", kind=kind, value=topic, required=True),
            Input(name="to", label="To", kind=kind, value=to, required=True,
                  hint="" if found else
                  "earliest, latest, a time such as 2026-06-01T00:00:00Z, or a queue offset"),
        ),
        effects=found,
        confirm=group if found else "",
        danger=found is not None,
        method="post" if found else "get",
    )  # fmt: skip


def _target(text: str) -> ResetTarget:
    try:
        return reset_target(text)
    except BadOption as error:
        raise BadField("to", error.message.removeprefix("--to ")) from None


async def _reset(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Move the offsets of a group in a topic."""
    group, topic = names["group"], fields.required("topic")
    target = _target(fields.required("to"))
    confirmed(fields, group)
    unchanged(fields, await offset_reset(console.source, group, topic, target))
    moved = await console.source.admin.reset_offsets(group, topic, **target)
    return Result(
        title=f"{group} continues at the new offsets",
        texts=[
            f"{each.broker_name}, queue {each.queue_id}: offset {each.queue_offset:,}"
            for each in moved
        ],
        back=f"/groups/{part(group)}",
    )


async def _skip_form(_: Console, names: Mapping[str, str], fields: Fields) -> Form:
    group = names["group"]
    return Form(
        title=f"Skip a message of {group}",
        submit="Skip the message",
        back=f"/groups/{part(group)}",
        inputs=(Input(name="message_id", label="Message id", required=True),),
        notes=("The message becomes a dead letter, and its message group continues after it.",),
        danger=True,
    )


async def _skip(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Dead-letter the message that blocks a message group."""
    group, message_id = names["group"], fields.required("message_id")
    # Brokers without an answer do not matter: the message was found on another one.
    blocked = await console.source.admin.skip_message(group, message_id, silent=[])
    return Result(
        title="The message is a dead letter now",
        texts=[f"{blocked.waiting:,} messages of its message group waited for it"],
        back=f"/groups/{part(group)}",
        links={"Dead letters": f"/dead-letters/{part(group)}"},
    )


async def _pause_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    group = names["group"]
    found = await group_page(console.source, group)
    paused = found.settings is not None and not found.settings.consume_enable
    members = figure(len(found.members or ()), "member", found.complete)
    lag = figure(found.lag, "message", found.complete)
    return Form(
        title=f"{'Resume' if paused else 'Pause'} {group}",
        submit="Resume" if paused else "Pause",
        back=f"/groups/{part(group)}",
        inputs=(
            Input(name="consume", label="The group may consume", kind="choice",
                  value="yes" if paused else "no", choices=("no", "yes")),
        ),
        effects=Effects(
            texts=(
                f"{group} has {members}, and {lag} not consumed",
            ),
            seen="",
            silent=found.silent,
            asked_at_ms=found.asked_at_ms,
        ),
        notes=(
            "A paused group keeps its offsets, and receives nothing until it is resumed. The "
            "setting survives a restart.",
        ),
    )  # fmt: skip


async def _pause(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Let a group consume no more, or again."""
    group = names["group"]
    consume = fields.required_switch("consume")
    silent: list[MqError] = []
    made = await console.source.admin.update_group(group, consume_enable=consume, silent=silent)
    state = "consumes again" if consume else "is paused"
    return Result(
        title=f"{group} {state}" if made.changes else f"{group} {state} already",
        texts=[f"{each.broker_name}: changed" for each in made.changes],
        incomplete=not_changed(silent),
        back=f"/groups/{part(group)}",
    )


async def _clone_form(console: Console, names: Mapping[str, str], fields: Fields) -> Form:
    group, target = names["group"], fields.text("target")
    found = await offset_clone(console.source, group, target) if target else None
    return Form(
        title=f"Clone the offsets of {group}",
        submit="Move the group" if found else "Show the consequences",
        back=f"/groups/{part(group)}",
        inputs=(
            Input(name="target", label="Group that is moved", kind="fixed" if found else "text",
                  value=target, required=True,
                  hint="" if found else "it continues where this group is"),
        ),
        effects=found,
        confirm=target if found else "",
        danger=found is not None,
        notes=("Retries are not cloned. The other group must exist.",),
        method="post" if found else "get",
    )  # fmt: skip


async def _clone(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Move a group to the offsets of another group."""
    group, target = names["group"], fields.required("target")
    confirmed(fields, target)
    unchanged(fields, await offset_clone(console.source, group, target))
    moved = await console.source.admin.clone_offsets(group, target)
    return Result(
        title=f"{target} continues where {group} is",
        texts=[
            f"{each.topic}, {each.broker_name}, queue {each.queue_id}: offset {each.queue_offset:,}"
            for each in moved
        ],
        back=f"/groups/{part(target)}",
    )


# ---- dead letters ----

TARGETS = ("retry", "origin")
REDRIVE_FIELDS = ("target", *jobs.FILTERS, "limit", "rate")


def _spec(group: str, fields: Fields) -> LetterJobSpec:
    return LetterJobSpec(
        consumer_group=group,
        target=fields.choice("target", TARGETS, "retry"),
        **jobs.filters(fields),
        limit=fields.number("limit", 0) or 0,
        rate=fields.number("rate", 0) or 0,
        note=jobs.NOTE,
    )


async def _retry_problem(console: Console, group: str) -> str:
    """Return why letters cannot be sent to the retry topic, or ""."""
    if reads_retries(await console.source.admin.list_clients(group, silent=[]), group):
        return ""
    return f"the members of {group} do not read its retry topic: send to origin"


async def _redrive_form(console: Console, names: Mapping[str, str], fields: Fields) -> Form:
    group = names["group"]
    found: Effects | None = None
    problem = await _retry_problem(console, group)
    if fields.text("target"):
        spec = _spec(group, fields)
        if spec.target == "retry" and problem:
            raise BadField("target", problem)
        found = await redrive(console.source, GroupLetterJob(console.source.admin, "", spec))
    kind = "fixed" if found else ""
    given = {name: fields.text(name) for name in REDRIVE_FIELDS}
    targets = {"retry": "this group alone", "origin": "all groups of the topic"}
    inputs = [
        Input(
            name="target",
            label="Send to",
            kind=kind or "choice",
            value=given["target"],
            choices=("origin",) if problem else TARGETS,
            hint=targets[given["target"]]
            if found
            else problem or ". ".join(f"{name}: {to}" for name, to in targets.items()),
        ),
        *jobs.filter_inputs(fields, fixed=bool(found)),
        Input(
            name="limit",
            label="Limit",
            kind=kind or "number",
            value=given["limit"],
            hint="letters" if found else "letters; empty for all",
        ),
        Input(
            name="rate",
            label="Rate",
            kind=kind or "number",
            value=given["rate"],
            hint="letters per second" if found else "letters per second; empty for no limit",
        ),
    ]
    if found:
        job_id = fields.text("job_id") or f"console-{token_hex(6)}"
        inputs.append(Input(name="job_id", label="Job", kind="fixed", value=job_id))
    return Form(
        title=f"Redrive dead letters of {group}",
        submit="Start the redrive" if found else "Show the consequences",
        back=f"/dead-letters/{part(group)}",
        inputs=inputs,
        effects=found,
        confirm=group if found else "",
        method="post" if found else "get",
        notes=("The brokers send the letters, each once, also after a restart.",),
    )  # fmt: skip


async def _redrive(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Start a job that sends dead letters again, on each broker that has some."""
    group, job_id = names["group"], fields.required("job_id")
    admin = console.source.admin
    spec = _spec(group, fields)
    confirmed(fields, group)
    job = GroupLetterJob(admin, job_id, spec)
    unchanged(fields, await redrive(console.source, job))
    problem = await _retry_problem(console, group) if spec.target == "retry" else ""
    if problem:
        raise BadField("target", problem)
    texts, incomplete = await jobs.started(console, job)
    return Result(
        title=f"Redrive {job_id}",
        texts=texts,
        incomplete=incomplete,
        back=f"/redrives/{part(job_id)}",
    )


# ---- brokers ----


async def _drain_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    name = names["broker"]
    found = await drain(console.source, name)
    draining = bool(found.draining)
    return Form(
        title=f"{'Undrain' if draining else 'Drain'} {name}",
        submit="Accept messages again" if draining else "Refuse messages of producers",
        back=f"/brokers/{part(name)}",
        inputs=(
            Input(name="accept", label="Accept messages of producers", kind="choice",
                  value="yes" if draining else "no", choices=("no", "yes")),
        ),
        effects=found,
        notes=(
            "A draining broker refuses messages of producers and still serves consumers. The "
            "setting survives a restart. The page of the broker says when it can be restarted.",
        ),
    )  # fmt: skip


async def _drain(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Make a broker refuse messages of producers, or accept them again."""
    name = names["broker"]
    draining = not fields.required_switch("accept")
    changed = await console.source.admin.drain_broker(name, draining=draining)
    state = "drains" if draining else "accepts messages"
    return Result(
        title=f"{name} {state}" if changed else f"{name} {state} already",
        back=f"/brokers/{part(name)}",
    )


async def _promote_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    name = names["broker"]
    found = await promotion(console.source, name)
    return Form(
        title=f"Promote a replica of {name}",
        submit="Promote the replica" if found.replicas else "",
        back=f"/brokers/{part(name)}",
        inputs=(
            Input(name="replica", label="Replica", kind="choice", choices=found.replicas,
                  value=next(iter(found.replicas), "")),
            Input(name="unclean", label="Even if acknowledged messages may be lost", kind="choice",
                  value="no", choices=("no", "yes")),
        ),
        effects=found,
        confirm=name,
        danger=True,
        notes=(
            "If the present master answers, it hands over and no send fails. Otherwise a replica "
            "is promoted only if no acknowledged message can be lost, or in the unclean way.",
        ),
    )  # fmt: skip


async def _promote(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Make a replica of a broker its master."""
    name = names["broker"]
    confirmed(fields, name)
    found = await promotion(console.source, name)
    if fields.text(SEEN) != found.seen:  # a broker may be silent: its master may be lost
        raise Changed("the replicas are not those that the form showed: look at them again")
    replica = fields.number("replica")
    if replica is None:
        raise BadField("replica", "it is empty: choose a replica")
    made = await console.source.admin.promote_replica(
        name, to=replica, unclean=fields.switch("unclean")
    )
    title = f"Replica {made.replica_id} is the master of {name}"
    return Result(
        title=f"{title} already" if made.was_master else title,
        texts=[
            f"address {made.address}, epoch {made.epoch}",
            "the previous master handed over"
            if made.handed_over
            else "the previous master did not answer",
        ],
        back=f"/brokers/{part(name)}",
    )


ACTIONS: dict[str, Action] = {
    **access.ACTIONS,
    **held.ACTIONS,
    **jobs.ACTIONS,
    **configuration.ACTIONS,
    "/new-topic": Action(
        _new_topic_form, _create_topic, "topics", fields=("topic", "queues", "type")
    ),
    "/topics/{topic}/change": Action(_topic_form, _update_topic, "topics", settings=TOPIC_SETTINGS),
    "/topics/{topic}/delete": Action(_delete_topic_form, _delete_topic, "topics"),
    "/topics/{topic}/send": Action(
        _send_form, _send, "topics", fields=("body", "tag", "keys", "message_group")
    ),
    "/new-group": Action(
        _new_group_form, _create_group, "groups", fields=("group", *NEW_GROUP_FIELDS)
    ),
    "/groups/{group}/change": Action(_group_form, _update_group, "groups", settings=GROUP_SETTINGS),
    "/groups/{group}/delete": Action(_delete_group_form, _delete_group, "groups"),
    "/groups/{group}/reset": Action(_reset_form, _reset, "groups", fields=("topic", "to")),
    "/groups/{group}/pause": Action(_pause_form, _pause, "groups", fields=("consume",)),
    "/groups/{group}/clone": Action(_clone_form, _clone, "groups", fields=("target",)),
    "/groups/{group}/skip": Action(_skip_form, _skip, "groups", fields=("message_id",)),
    "/dead-letters/{group}/redrive": Action(
        _redrive_form, _redrive, "dead-letters", fields=(*REDRIVE_FIELDS, "job_id")
    ),
    "/brokers/{broker}/promote": Action(
        _promote_form, _promote, "brokers", fields=("replica", "unclean")
    ),
    "/brokers/{broker}/drain": Action(_drain_form, _drain, "brokers", fields=("accept",)),
}
