"""The pages and changes of the options of running brokers and name servers."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from aerobee_console.reading.configuration import (
    Configuration,
    Option,
    configuration,
    unregistered_replicas,
)
from aerobee_console.web.console import Console
from aerobee_console.web.fields import BadField, Fields, fields_of
from aerobee_console.web.forms import WAS, Action, Changed, Form, Input, Result
from aerobee_console.web.paths import part
from aerobee_console.web.render import link
from aerobee_wire.status import MqError

TAB = "brokers"
WITHOUT_BROKER = "/name-servers/configuration"


def _address(names: Mapping[str, str]) -> str:
    broker = names.get("broker")
    return WITHOUT_BROKER if broker is None else f"/brokers/{part(broker)}/configuration"


async def show_configuration(request: Request, console: Console) -> Response:
    names = request.path_params
    found = await configuration_of(console, names, fields_of(request))
    return console.page(
        request, "configuration.html.j2", tab=TAB, live=True, page=found, here=_address(names)
    )


async def configuration_of(
    console: Console, names: Mapping[str, str], fields: Fields
) -> Configuration:
    return await configuration(
        console.source,
        names.get("broker"),
        key=fields.text("key"),
        changed=fields.switch("changed"),
    )


async def _option(console: Console, names: Mapping[str, str], fields: Fields) -> Option:
    """Return the option of a form. Raises BadField if it is unknown or cannot be changed."""
    key = fields.required("key")
    found = (await configuration(console.source, names.get("broker"))).option(key)
    if found is None:
        raise BadField("key", f"there is no option {key!r}: see the list of options")
    if not found.changeable:
        raise BadField("key", f"{found.key} can only be set at the start of the process")
    return found


async def _form(console: Console, names: Mapping[str, str], fields: Fields) -> Form:
    found = await _option(console, names, fields)
    value = found.values[0].value
    notes = [f"{each.address}: {each.value} ({each.source})" for each in found.values]
    return Form(
        title=f"Change {found.key}",
        submit="Change",
        back=link(_address(names), key=found.key),
        inputs=(
            Input(name="key", label="Option", kind="fixed", value=found.key),
            Input(name="value", label="Value", value=value, was=value),
            Input(name="reset", label="Take the change back", kind="choice", value="no",
                  choices=("no", "yes"), hint="the value of the start counts then"),
        ),
        notes=(*notes, "The change lasts through restarts. It counts above file and environment."),
    )  # fmt: skip


async def _change(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Change an option of each process, or take a change back."""
    found = await _option(console, names, fields)
    key, value = found.key, found.values[0].value
    back = link(_address(names), key=key)
    reset, wanted = fields.switch("reset"), fields.text("value", value)
    was = fields.text(f"{WAS}value", value)
    if was != value:
        raise Changed(f"{key} was {was} and is {value} now: nothing was changed; look again")
    if wanted == value and found.is_same and not reset:
        return Result(title=f"{key} had this value already", back=back)
    silent: list[MqError] = []
    entries, unset = ({}, [key]) if reset else ({key: wanted}, [])
    admin, broker = console.source.admin, names.get("broker")
    if broker is None:
        made = await admin.update_namesrv_config(entries, unset=unset, silent=silent)
        missing = []
    else:
        made = await admin.update_broker_config(broker, entries, unset=unset, silent=silent)
        missing = await unregistered_replicas(console.source, broker)
    return Result(
        title=f"{key} was taken back" if reset else f"{key} is {wanted}",
        texts=[f"{each.address}: changed" for each in made if not each.without_effect],
        incomplete=[
            *(f"not changed: {error.message}" for error in silent),
            *(f"not changed: {text}" for text in missing),
            *(
                f"{each.address}: {', '.join(each.without_effect)} has no effect, because the "
                "command line sets it: start without that argument"
                for each in made
                if each.without_effect
            ),
        ],
        back=back,
    )


PAGES = {
    "/brokers/{broker}/configuration": show_configuration,
    WITHOUT_BROKER: show_configuration,
}
ACTIONS: dict[str, Action] = {
    f"{path}/change": Action(_form, _change, TAB, fields=("key", "reset"), settings=("value",))
    for path in PAGES
}
