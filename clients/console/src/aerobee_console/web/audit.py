"""The page of the audit logs. Users without the right to read them have neither page nor link."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from aerobee_console.reading.audit import EVENTS, AuditList, audit_list
from aerobee_console.web.console import Console
from aerobee_console.web.fields import Fields, fields_of
from aerobee_console.web.security import Refused

TAB = "users"


async def show_audit(request: Request, console: Console) -> Response:
    found = await audit_of(console, fields_of(request))
    return console.page(request, "audit.html.j2", tab=TAB, live=True, page=found, events=EVENTS)


async def audit_of(console: Console, fields: Fields) -> AuditList:
    if not console.options.audit:
        raise Refused(
            f"the policies of {console.user} do not allow to read audit logs: if they differ by "
            "now, log in again"
        )
    now_ms = console.source.now_ms()
    return await audit_list(
        console.source,
        server=fields.text("server"),
        event=fields.choice("event", EVENTS),
        user=fields.text("user"),
        rpc=fields.text("rpc"),
        resource=fields.text("resource"),
        result=fields.text("result"),
        since_ms=fields.moment("since", now_ms),
        until_ms=fields.moment("until", now_ms),
    )


PAGES = {"/audit": show_audit}
