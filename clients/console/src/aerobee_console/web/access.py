"""The pages and changes of users, policies and quotas.

A secret key is generated here. The result of the change shows it once, and no page shows it again.
A change is made also if a broker does not answer, so that a user can be disabled at any time: the
result names the processes that do not have it yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from aerobee_cli.options import BadOption
from aerobee_cli.secrets import read_secret
from aerobee_client.admin.descriptions import AccessChange, PolicyDescription, QuotaDescription
from aerobee_console.reading import access
from aerobee_console.web.console import INVALID, NOT_FOUND, Console, status_of
from aerobee_console.web.fields import BadField, Fields, fields_of
from aerobee_console.web.forms import (
    Action,
    Form,
    Input,
    Result,
    as_shown,
    changed_settings,
    confirmed,
    setting,
)
from aerobee_console.web.paths import part
from aerobee_console.web.render import link
from aerobee_wire.access.policies import ACTIONS as EVERY_ACTION
from aerobee_wire.access.policies import ALL_ACTIONS, DECISIONS, TYPES
from aerobee_wire.status import MqError

TAB = "users"
YES_NO = ("no", "yes")
TESTED = tuple(sorted(EVERY_ACTION - ALL_ACTIONS))
RATES = {
    "calls": "Calls",
    "messages_in": "Messages sent",
    "bytes_in": "Bytes sent",
    "messages_out": "Messages received",
    "bytes_out": "Bytes received",
}
USER_SETTINGS = ("enabled", "super")
POLICY_KEY = ("resource", "decision", "type")
POLICY_SETTINGS = ("actions", "source_ips")
UNCHANGED = frozenset({*INVALID, *NOT_FOUND})


async def show_users(request: Request, console: Console) -> Response:
    found = await users_of(console, fields_of(request))
    return console.page(request, "users.html.j2", tab=TAB, live=True, page=found)


async def users_of(console: Console, fields: Fields) -> access.UserList:
    return await access.user_list(console.source, name=fields.text("name"), page=fields.page())


async def show_user(request: Request, console: Console) -> Response:
    found = await access.user_page(console.source, request.path_params["user"])
    return console.page(
        request, "user.html.j2", tab=TAB, live=True, page=found, rates=RATES,
        limits=access.limits_of, policy_link=policy_link,
    )  # fmt: skip


async def show_quotas(request: Request, console: Console) -> Response:
    found = await quotas_of(console, fields_of(request))
    return console.page(request, "quotas.html.j2", tab=TAB, live=True, page=found, rates=RATES)


async def quotas_of(console: Console, fields: Fields) -> access.QuotaList:
    return await access.quota_list(
        console.source, subject=fields.text("subject"), page=fields.page()
    )


async def show_right(request: Request, console: Console) -> Response:
    """Show a form for a call, and whether it would be allowed."""
    fields, status, problem = fields_of(request), 200, None
    try:
        found = await right_of(console, fields)
    except (BadField, MqError) as error:
        if isinstance(error, MqError) and error.code not in UNCHANGED:
            raise
        status = status_of(error) if isinstance(error, MqError) else 400
        problem = str(error)
        found = await access.right(console.source, "", "", "")
    return console.page(
        request, "right.html.j2", status=status, tab=TAB, page=found, actions=TESTED,
        problem=problem,
    )  # fmt: skip


async def right_of(console: Console, fields: Fields) -> access.Right:
    user = fields.text("user")
    return await access.right(
        console.source,
        user,
        fields.required("resource") if user else "",
        fields.choice("action", TESTED, TESTED[0]),
        fields.text("source_ip"),
    )


# ---- users ----


def _user(name: str) -> str:
    return f"/users/{part(name)}"


def _done(title: str, change: AccessChange, back: str, *texts: str, secret: str = "") -> Result:
    return Result(
        title=title,
        texts=[f"stored at the name server {change.changed_at}", *texts],
        incomplete=[
            f"the {process} does not have it: {reason}"
            for process, reason in change.lacking.items()
        ],
        secret=secret,
        back=back,
    )


async def _with_secret(name: str, secret: str, change: Any) -> AccessChange:
    """Return a change that contains a secret key.

    An error that does not say that nothing was changed names the key, because it may be valid.
    """
    try:
        made: AccessChange = await change
    except MqError as error:
        if error.code in UNCHANGED:
            raise
        text = f"{error.message}; if user {name} was changed, its new secret key is {secret}"
        raise MqError(error.code, text, about=error.about) from error
    return made


def _own(console: Console, name: str) -> list[str]:
    return [f"You are logged in as {name}."] if console.user == name else []


async def _new_user_form(_: Console, __: Mapping[str, str], ___: Fields) -> Form:
    return Form(
        title="Create a user",
        submit="Create",
        back="/users",
        inputs=(
            Input(name="user", label="Name", required=True, hint="the access key"),
            Input(name="super", label="SUPER", kind="choice", value="no", choices=YES_NO,
                  hint="a SUPER user may do everything"),
        ),
        notes=(
            "The secret key is generated, and shown once. Without policies, the user has no rights "
            "unless it is SUPER.",
        ),
    )  # fmt: skip


async def _create_user(console: Console, _: Mapping[str, str], fields: Fields) -> Result:
    """Create a user with a generated secret key, which the result shows once."""
    name, is_super = fields.required("user"), fields.switch("super")
    secret, _generated = read_secret(None, generate=True)
    change = console.source.admin.create_user(name, secret, super=is_super)
    made = await _with_secret(name, secret, change)
    return _done(f"User {name} was created", made, _user(name), secret=secret)


def _user_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    if bad := [value for value in values.values() if value not in YES_NO]:
        raise BadOption(f"{bad[0]!r} is not known: choose yes or no")
    return {name: value == "yes" for name, value in values.items()}


async def _user_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    name = names["user"]
    page, effects = await access.user_change(console.source, name)
    user = await console.source.admin.get_user(name) if page.user is None else page.user
    return Form(
        title=f"Change {name}",
        submit="Change",
        back=_user(name),
        inputs=tuple(
            setting(each, label, YES_NO[value], YES_NO, kind="choice")
            for each, label, value in (
                ("enabled", "Enabled", user.enabled), ("super", "SUPER", user.super)
            )
        ),
        effects=effects,
        notes=_own(console, name),
    )  # fmt: skip


async def _update_user(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Enable or disable a user, or change whether it may do everything."""
    name = names["user"]
    form = await _user_form(console, names, fields)
    arguments = changed_settings(_user_settings, fields, form)
    if not arguments:
        return Result(title=f"User {name} had these settings already", back=_user(name))
    made = await console.source.admin.update_user(name, **arguments)
    states = {
        "enabled": ("its calls are rejected", "its calls are served"),
        "super": ("its policies decide", "it may do everything"),
    }
    texts = [states[each][value] for each, value in arguments.items()]
    return _done(f"User {name} was changed", made, _user(name), *texts)


async def _rotate_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    name = names["user"]
    user = await console.source.admin.get_user(name)
    notes = [
        "A second secret key is generated, and shown once. The present one stays valid, until you "
        "finish the rotation."
    ]
    if user.secrets > 1:
        notes = [f"{name} has two secret keys: finish the present rotation first."]
    return Form(
        title=f"Rotate the secret key of {name}", submit="Generate a key", back=_user(name),
        notes=notes,
    )  # fmt: skip


async def _rotate(console: Console, names: Mapping[str, str], _: Fields) -> Result:
    """Give a user a second secret key, which the result shows once."""
    name = names["user"]
    secret, _generated = read_secret(None, generate=True)
    change = console.source.admin.update_user(name, secret=secret, keep_former_secret=True)
    made = await _with_secret(name, secret, change)
    done = _done(f"User {name} has a new secret key", made, _user(name), secret=secret)
    links = {"Finish the rotation": f"{_user(name)}/finish"}
    return replace(done, texts=[*done.texts, "the former key is valid too"], links=links)


async def _finish_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    name = names["user"]
    _page, effects = await access.rotation_end(console.source, name)
    return Form(
        title=f"Finish the rotation of {name}",
        submit="Make the former key invalid",
        back=_user(name),
        effects=effects,
        confirm=name,
        danger=True,
        notes=_own(console, name),
    )


async def _finish(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Make only the newest secret key of a user valid."""
    name = names["user"]
    confirmed(fields, name)
    _page, effects = await access.rotation_end(console.source, name)
    as_shown(fields, effects, "the user is not as the form showed it")
    made = await console.source.admin.update_user(name, drop_former_secret=True)
    return _done(f"User {name} has one secret key", made, _user(name))


async def _delete_user_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    name = names["user"]
    return Form(
        title=f"Delete {name}",
        submit="Delete the user",
        back=_user(name),
        effects=await access.user_deletion(console.source, name),
        confirm=name,
        danger=True,
        notes=[
            *_own(console, name),
            "Its calls are rejected within 2 seconds, and its streams end. The secret key is lost.",
        ],
    )


async def _delete_user(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Delete a user and its policies."""
    name = names["user"]
    confirmed(fields, name)
    effects = await access.user_deletion(console.source, name)
    as_shown(fields, effects, "the user or its policies are not as the form showed them")
    made = await console.source.admin.delete_user(name)
    return _done(f"User {name} was deleted", made, "/users")


# ---- policies ----


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _policy_inputs(actions: str = "", source_ips: str = "") -> list[Input]:
    return [
        Input(name="actions", label="Actions", value=actions, required=True,
              hint=f"All, or some of {', '.join(TESTED)}"),
        Input(name="source_ips", label="Only from", value=source_ips,
              hint="addresses and networks; empty for any"),
    ]  # fmt: skip


async def _new_policy_form(_: Console, names: Mapping[str, str], __: Fields) -> Form:
    name = names["user"]
    return Form(
        title=f"Add a policy of {name}",
        submit="Add",
        back=_user(name),
        inputs=(
            Input(name="resource", label="Resource", required=True,
                  hint="Topic:, Group:, Namespace: or Cluster: with a name, a PREFIX* or *; or *"),
            *_policy_inputs(),
            Input(name="decision", label="Decision", kind="choice", value="ALLOW",
                  choices=tuple(DECISIONS)),
            Input(name="type", label="Type", kind="choice", value="CUSTOM", choices=TYPES,
                  hint="DEFAULT counts only if no other policy matches"),
        ),
        notes=("The most specific policy decides, and among equals a denial.",),
    )  # fmt: skip


async def _create_policy(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Add a policy of a user."""
    name = names["user"]
    policy = PolicyDescription(
        resource=fields.required("resource"),
        actions=_words(fields.required("actions")),
        decision=fields.choice("decision", DECISIONS, "ALLOW"),
        policy_type=fields.choice("type", TYPES, "CUSTOM"),
        source_ips=_words(fields.text("source_ips")),
    )
    made = await console.source.admin.create_policies(name, [policy])
    return _done(f"Policy of {name} was added", made, _user(name), str(policy))


async def _policy(console: Console, name: str, fields: Fields) -> PolicyDescription:
    """Return the policy that the fields name."""
    key = tuple(fields.required(each) for each in POLICY_KEY)
    for each in await access.policies_of(console.source, name):
        if (each.resource, each.decision, each.policy_type) == key:
            return each
    raise BadField("resource", f"{name} has no such policy: open its page, and choose one")


def _policy_key(policy: PolicyDescription) -> list[Input]:
    values = (policy.resource, policy.decision, policy.policy_type)
    return [
        Input(name=name, label=name.capitalize(), kind="fixed", value=value)
        for name, value in zip(POLICY_KEY, values, strict=True)
    ]


async def _policy_form(console: Console, names: Mapping[str, str], fields: Fields) -> Form:
    name = names["user"]
    policy = await _policy(console, name, fields)
    inputs = _policy_inputs(",".join(policy.actions), ",".join(policy.source_ips))
    return Form(
        title=f"Change a policy of {name}",
        submit="Change",
        back=_user(name),
        inputs=(*_policy_key(policy), *(replace(each, was=each.value) for each in inputs)),
        notes=_own(console, name),
    )


async def _update_policy(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Change the actions and networks of a policy."""
    name = names["user"]
    form = await _policy_form(console, names, fields)
    arguments = changed_settings(
        lambda values: {each: _words(value) for each, value in values.items()}, fields, form
    )
    if not arguments:
        return Result(title=f"The policy of {name} was as you want it already", back=_user(name))
    policy = replace(await _policy(console, name, fields), **arguments)
    made = await console.source.admin.update_policies(name, [policy])
    return _done(f"Policy of {name} was changed", made, _user(name), str(policy))


async def _delete_policy_form(console: Console, names: Mapping[str, str], fields: Fields) -> Form:
    name = names["user"]
    resource, kind = fields.required("resource"), fields.choice("type", TYPES, "CUSTOM")
    return Form(
        title=f"Delete policies of {name}",
        submit="Delete",
        back=_user(name),
        inputs=(
            Input(name="resource", label="Resource", kind="fixed", value=resource),
            Input(name="type", label="Type", kind="fixed", value=kind),
        ),
        effects=await access.policy_deletion(console.source, name, resource, kind),
        danger=True,
        notes=_own(console, name),
    )


async def _delete_policy(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Delete the policies of a user with the same resource and type."""
    name = names["user"]
    resource, kind = fields.required("resource"), fields.choice("type", TYPES, "CUSTOM")
    effects = await access.policy_deletion(console.source, name, resource, kind)
    as_shown(fields, effects, "the policies are not as the form showed them")
    made = await console.source.admin.delete_policies(name, resource=resource, policy_type=kind)
    return _done(f"Policies of {name} for {resource} were deleted", made, _user(name))


# ---- quotas ----


def _rate_inputs(quota: QuotaDescription) -> list[Input]:
    return [
        Input(name=name, label=label, kind="number", value=str(getattr(quota, name)),
              hint="a second; 0 for no limit")
        for name, label in RATES.items()
    ]  # fmt: skip


def _rates(quota: QuotaDescription, fields: Fields) -> QuotaDescription:
    """Return a quota with the rates of a form."""
    given = {name: fields.number(name, getattr(quota, name)) or 0 for name in RATES}
    if not any(given.values()):
        raise BadField("calls", "nothing is limited: give at least one rate, or delete the quota")
    return QuotaDescription(quota.subject, **given)


async def _set_quota(console: Console, quota: QuotaDescription) -> Result:
    rates = access.limits_of(quota)
    made = await console.source.admin.set_quota(quota.subject, **rates)
    texts = [f"{RATES[name]}: {rate:,} a second" for name, rate in rates.items()]
    return _done(f"Quota of {quota.subject} was set", made, "/quotas", *texts)


async def _new_quota_form(_: Console, __: Mapping[str, str], fields: Fields) -> Form:
    subject = fields.text("subject")
    return Form(
        title="Set a quota",
        submit="Set",
        back="/quotas",
        inputs=(
            Input(name="subject", label="Subject", value=subject, required=True,
                  hint="User:NAME, Client:ID or Address:HOST; the name * for those without one"),
            *_rate_inputs(QuotaDescription(subject)),
        ),
        notes=("Each process that serves the subject counts by itself.",),
    )  # fmt: skip


async def _create_quota(console: Console, _: Mapping[str, str], fields: Fields) -> Result:
    """Set the quota of a user, a client or an address that has none."""
    subject = fields.required("subject")
    if any(each.subject == subject for each in await console.source.admin.list_quotas()):
        raise BadField("subject", f"{subject} has a quota: change it in the list")
    return await _set_quota(console, _rates(QuotaDescription(subject), fields))


async def _quota_form(console: Console, _: Mapping[str, str], fields: Fields) -> Form:
    quota = await access.quota_of(console.source, fields.required("subject"))
    return Form(
        title=f"Change the quota of {quota.subject}",
        submit="Change",
        back="/quotas",
        inputs=(
            Input(name="subject", label="Subject", kind="fixed", value=quota.subject),
            *(replace(each, was=each.value) for each in _rate_inputs(quota)),
        ),
        notes=("Each process that serves the subject counts by itself.",),
    )


async def _update_quota(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Change the rates of a quota."""
    form = await _quota_form(console, names, fields)
    if not changed_settings(dict, fields, form):
        return Result(title=f"{form.inputs[0].value} had these rates already", back=form.back)
    quota = await access.quota_of(console.source, fields.required("subject"))
    return await _set_quota(console, _rates(quota, fields))


async def _delete_quota_form(console: Console, _: Mapping[str, str], fields: Fields) -> Form:
    quota = await access.quota_of(console.source, fields.required("subject"))
    return Form(
        title=f"Delete the quota of {quota.subject}",
        submit="Delete the quota",
        back="/quotas",
        inputs=(Input(name="subject", label="Subject", kind="fixed", value=quota.subject),),
        effects=access.quota_effects(console.source, quota, RATES),
        danger=True,
    )


async def _delete_quota(console: Console, _: Mapping[str, str], fields: Fields) -> Result:
    """Delete a quota."""
    quota = await access.quota_of(console.source, fields.required("subject"))
    effects = access.quota_effects(console.source, quota, RATES)
    as_shown(fields, effects, "the quota is not as the form showed it")
    made = await console.source.admin.delete_quota(quota.subject)
    return _done(f"Quota of {quota.subject} was deleted", made, "/quotas")


def policy_link(username: str, change: str, policy: PolicyDescription) -> str:
    """Return the address of the form that changes or deletes a policy."""
    key = {"resource": policy.resource, "type": policy.policy_type}
    if change == "change":
        key["decision"] = policy.decision
    return link(f"{_user(username)}/policies/{change}", **key)


PAGES = {
    "/users": show_users,
    "/users/{user}": show_user,
    "/quotas": show_quotas,
    "/rights": show_right,
}
ACTIONS: dict[str, Action] = {
    "/new-user": Action(_new_user_form, _create_user, TAB, fields=("user", "super")),
    "/users/{user}/change": Action(_user_form, _update_user, TAB, settings=USER_SETTINGS),
    "/users/{user}/rotate": Action(_rotate_form, _rotate, TAB),
    "/users/{user}/finish": Action(_finish_form, _finish, TAB),
    "/users/{user}/delete": Action(_delete_user_form, _delete_user, TAB),
    "/users/{user}/policies/new": Action(
        _new_policy_form, _create_policy, TAB, fields=(*POLICY_KEY, *POLICY_SETTINGS)
    ),
    "/users/{user}/policies/change": Action(
        _policy_form, _update_policy, TAB, fields=POLICY_KEY, settings=POLICY_SETTINGS
    ),
    "/users/{user}/policies/delete": Action(
        _delete_policy_form, _delete_policy, TAB, fields=("resource", "type")
    ),
    "/quotas/new": Action(_new_quota_form, _create_quota, TAB, fields=("subject", *RATES)),
    "/quotas/change": Action(
        _quota_form, _update_quota, TAB, fields=("subject",), settings=tuple(RATES)
    ),
    "/quotas/delete": Action(_delete_quota_form, _delete_quota, TAB, fields=("subject",)),
}
