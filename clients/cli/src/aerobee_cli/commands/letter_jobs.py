"""Define `aerobee dlq jobs`: list, show and cancel the jobs over dead letters."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.errors import CommandError
from aerobee_cli.options import (
    ClusterOptions,
    ListingOptions,
    end,
)
from aerobee_cli.redriving import FAILURE_COLUMNS
from aerobee_cli.table import Column, Table, number
from aerobee_cli.unanswered import unchanged
from aerobee_wire.status import MqError

app = CommandGroup("jobs", help="Jobs that send dead letters again or dismiss them.")

Job = Annotated[str, Argument(metavar="JOB", help="Id of the job.")]


def _most(value: float) -> str:
    """Format a limit or a rate; "" for 0, which means no limit."""
    return f"{value:,.3f}".rstrip("0").rstrip(".") if value else ""


JOB_COLUMNS = (
    Column("job", "job_id"),
    Column("group", "consumer_group"),
    Column("action", "action"),
    Column("state", "state"),
    Column("started", "started_timestamp_ms"),
    number("examined", "examined"),
    number("of", "total"),
    number("sent", "sent"),
    number("failed", "failed"),
    Column("by", "requested_by"),
    Column("to", "target", extra=True),
    Column("broker", "broker_name", extra=True),
    number("sent before", "already", extra=True),
    number("duplicates", "duplicates", extra=True),
    number("unreadable", "unreadable", extra=True),
    Column("filters", "filters", extra=True, text=True),
    Column("limit", "limit", _most, right=True, extra=True),
    Column("rate", "rate", _most, right=True, extra=True),
    Column("waits for", "waits_for", text=True),
    Column("ended", "ended_timestamp_ms", extra=True),
    Column("note", "note", extra=True, text=True),
)


def _item(job: Any) -> dict[str, Any]:
    item = asdict(job)
    for name in ("started", "ended"):
        item[f"{name}_timestamp_ms"] = item.pop(f"{name}_ms")
    return item


@app.add("list", epilog="Example: aerobee dlq jobs list --group billing")
def list_jobs(
    *,
    group: Annotated[str, Option("--group", metavar="GROUP", help="Only of this group.")] = "",
    options: ListingOptions,
) -> None:
    """List the jobs that the brokers remember, the newest first, with a row for each broker."""
    table = options.listing(JOB_COLUMNS)
    silent: list[MqError] = []
    with options.admin() as admin:
        jobs = admin.letter_jobs(group, silent=silent)
    table.show(map(_item, jobs), as_json=options.json, empty="no jobs")
    end(f"warning: not all jobs are listed: {error}" for error in silent)


@app.add(epilog="Example: aerobee dlq jobs show 1f0c9a2b7d3e")
def show(*, job: Job, options: ClusterOptions) -> None:
    """Show a job with its progress at each broker, and the dead letters that it could not send."""
    silent: list[MqError] = []
    with options.admin() as admin:
        jobs = admin.letter_jobs(job_id=job, silent=silent)
        failures = [
            asdict(failure)
            for each in jobs
            if each.failed
            for failure in admin.letter_failures(each.broker_name, job)
        ]
    if not jobs and not silent:
        raise CommandError(f"no broker has a job {job}: see aerobee dlq jobs list")
    if options.json:
        output.show_one(
            {"brokers": [_item(each) for each in jobs], "failures": failures}, as_json=True
        )
    else:
        items = [
            {**_item(each), "limit": _most(each.limit), "rate": _most(each.rate)} for each in jobs
        ]
        output.show_each(items, as_json=False)
        Table(FAILURE_COLUMNS).show(failures)
    end(f"warning: the job is not shown for each broker: {error}" for error in silent)


@app.add(epilog="Example: aerobee dlq jobs cancel 1f0c9a2b7d3e")
def cancel(*, job: Job, options: ClusterOptions) -> None:
    """Cancel a job on each broker. What it has sent or dismissed stays so.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    silent: list[MqError] = []
    with options.admin() as admin:
        count = admin.cancel_letter_job(job, silent=silent)
    done = f"cancelled the job {job} on {output.counted(count, 'broker')}"
    where = " on each broker that answers" if silent else ""
    text = done if count else f"the job {job} had ended before{where}"
    output.show_done(text, {"job_id": job, "cancelled_on": count}, as_json=options.json)
    end(unchanged(silent))
