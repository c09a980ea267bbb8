"""The pages and changes of jobs over dead letters: redrives, dismissals, and their end."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from aerobee_cli.output import counted
from aerobee_client.admin.letters import LetterJobSpec
from aerobee_client.admin.redriving.letter_job import GroupLetterJob
from aerobee_console.reading import jobs
from aerobee_console.reading.effects import Effects, redrive
from aerobee_console.web.console import Console
from aerobee_console.web.fields import BadField, Fields, fields_of
from aerobee_console.web.forms import (
    Action,
    Changed,
    Form,
    Input,
    Result,
    confirmed,
    not_changed,
    unchanged,
)
from aerobee_console.web.paths import part
from aerobee_wire.status import MqError

TAB = "dead-letters"
STATES = ("running", "done", "cancelled")
NOTE = "started in the console"


async def show_jobs(request: Request, console: Console) -> Response:
    found = await jobs_of(console, fields_of(request))
    return console.page(request, "jobs.html.j2", tab=TAB, live=True, page=found, states=STATES)


async def jobs_of(console: Console, fields: Fields) -> jobs.JobList:
    return await jobs.job_list(
        console.source,
        group=fields.text("group"),
        state=fields.choice("state", STATES),
        page=fields.page(),
    )


async def show_job(request: Request, console: Console) -> Response:
    found = await jobs.job_page(console.source, request.path_params["job"])
    return console.page(request, "job.html.j2", tab=TAB, live=True, page=found)


async def started(console: Console, job: GroupLetterJob) -> tuple[list[str], list[str]]:
    """Start a job. Return a text for each broker, and the failures if it started in part.

    Raises Changed if no letter meets the conditions, and MqError if it started nowhere.
    """
    admin = console.source.admin
    busy = {name for name, each in job.previews.items() if each.selected}
    if not busy:
        raise Changed("no dead letter meets the conditions: change them, and look again")
    incomplete: list[str] = []
    try:
        await job.start()
        found = await admin.letter_jobs(job_id=job.job_id)
    except MqError as error:
        found = await admin.letter_jobs(job_id=job.job_id, silent=[])
        if not found:
            raise
        others = ", ".join(sorted(busy - {each.broker_name for each in found}))
        incomplete.append(f"{error.message}; the job did not start at {others}")
    texts = [
        f"{each.broker_name}: {each.state}, {each.total:,} letters to examine" for each in found
    ]
    return texts, incomplete


# ---- filters ----

FILTERS = ("reason", "no_reason", "tag", "no_tag")


def filters(fields: Fields) -> dict[str, Any]:
    """Return the filters of a job by tag and reason. Raises BadField if two exclude each other."""
    found: dict[str, Any] = {}
    for name in ("reason", "tag"):
        found |= {name: fields.text(name), f"no_{name}": fields.switch(f"no_{name}")}
        if found[name] and found[f"no_{name}"]:
            raise BadField(f"no_{name}", f"a {name} is given too: give one of them")
    return found


def filter_inputs(fields: Fields, *, fixed: bool) -> list[Input]:
    inputs: list[Input] = []
    for name in ("reason", "tag"):
        none = "yes" if fields.text(f"no_{name}") == "yes" else ""
        inputs += [
            Input(
                name=name,
                label=f"Only with the {name}",
                kind="fixed" if fixed else "text",
                value=fields.text(name),
            ),
            Input(
                name=f"no_{name}",
                label=f"Only without a {name}",
                kind="fixed" if fixed else "choice",
                value=none,
                choices=("no", "yes"),
            ),
        ]
    return inputs  # fmt: skip


# ---- purge ----


def _purge(group: str, job_id: str, fields: Fields, console: Console) -> GroupLetterJob:
    spec = LetterJobSpec(consumer_group=group, note=NOTE, **filters(fields))
    return GroupLetterJob(console.source.admin, job_id, spec)


async def _purge_form(console: Console, names: Mapping[str, str], fields: Fields) -> Form:
    group = names["group"]
    job_id = fields.text("job_id") or f"console-{token_hex(6)}"
    return Form(
        title=f"Purge dead letters of {group}",
        submit="Purge the letters",
        back=f"/dead-letters/{part(group)}",
        inputs=(
            *filter_inputs(fields, fixed=True),
            Input(name="job_id", label="Job", kind="fixed", value=job_id),
        ),
        effects=await redrive(console.source, _purge(group, job_id, fields, console)),
        confirm=group,
        danger=True,
        notes=(
            "The letters are marked as dismissed, and a redrive leaves them out.",
        ),
    )  # fmt: skip


async def _perform_purge(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """Dismiss dead letters, on each broker that has some."""
    group, job_id = names["group"], fields.required("job_id")
    confirmed(fields, group)
    job = _purge(group, job_id, fields, console)
    unchanged(fields, await redrive(console.source, job))
    texts, incomplete = await started(console, job)
    return Result(
        title=f"Purge {job_id}", texts=texts, incomplete=incomplete,
        back=f"/redrives/{part(job_id)}",
    )  # fmt: skip


# ---- cancel ----


async def _cancel_form(console: Console, names: Mapping[str, str], _: Fields) -> Form:
    found = await jobs.job_page(console.source, names["job"])
    parts = found.job.parts if found.job else ()
    return Form(
        title=f"Cancel {names['job']}",
        submit="Cancel the job",
        back=f"/redrives/{part(names['job'])}",
        effects=Effects(
            texts=tuple(
                f"{each.broker_name}: {each.state}, {counted(each.sent, 'letter')} sent of "
                f"{each.total:,}"
                for each in parts
            ),
            seen="",
            silent=found.silent,
            asked_at_ms=found.asked_at_ms,
        ),
        notes=("The letters that it has sent or dismissed stay so.",),
        danger=True,
    )


async def _cancel(console: Console, names: Mapping[str, str], _: Fields) -> Result:
    """Cancel a job over dead letters on each broker."""
    job_id = names["job"]
    silent: list[MqError] = []
    count = await console.source.admin.cancel_letter_job(job_id, silent=silent)
    title = f"{job_id} was cancelled on {counted(count, 'broker')}"
    if not count:
        where = " on each broker that answers" if silent else ""
        title = f"{job_id} had ended before{where}"
    return Result(title=title, incomplete=not_changed(silent), back=f"/redrives/{part(job_id)}")


PAGES = {"/redrives": show_jobs, "/redrives/{job}": show_job}
ACTIONS: dict[str, Action] = {
    "/dead-letters/{group}/purge": Action(
        _purge_form, _perform_purge, TAB, fields=(*FILTERS, "job_id")
    ),
    "/redrives/{job}/cancel": Action(_cancel_form, _cancel, TAB),
}
