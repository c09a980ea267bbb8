"""The parts that all pages share: cluster, options, and the rendering of a page or an error."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from aerobee_client import Credentials
from aerobee_console.options import Options
from aerobee_console.reading.overview import Doctor
from aerobee_console.reading.rates import Watch
from aerobee_console.reading.source import Source
from aerobee_console.web.live import Live
from aerobee_console.web.once import Once
from aerobee_console.web.paths import at_base
from aerobee_console.web.render import environment
from aerobee_console.web.security import Guard
from aerobee_wire.status import Code, MqError

NOT_FOUND = frozenset(
    {
        Code.TOPIC_NOT_EXIST,
        Code.SUBSCRIPTION_GROUP_NOT_EXIST,
        Code.BROKER_NOT_EXIST,
        Code.QUERY_NOT_FOUND,
    }
)
INVALID = frozenset({Code.INVALID_PARAMETER, Code.MESSAGE_ILLEGAL, Code.ILLEGAL_OPERATION})
TABS = (
    ("overview", "/", "Overview", "o"),
    ("brokers", "/brokers", "Brokers", "b"),
    ("topics", "/topics", "Topics", "t"),
    ("groups", "/groups", "Groups", "g"),
    ("messages", "/messages", "Messages", "m"),
    ("dead-letters", "/dead-letters", "Dead letters", "d"),
    ("waiting", "/delayed", "Waiting", "w"),
    ("clients", "/clients", "Clients", "c"),
    ("users", "/users", "Users", "u"),
)


class Console:
    """The state of a running console: clients and options, but no data of the cluster.

    With a login, each user has one. `credentials` are those of its user; None if there is no login,
    and for the page of the login.
    """

    def __init__(
        self,
        options: Options,
        source: Source,
        doctor: Doctor,
        credentials: Credentials | None = None,
    ) -> None:
        self.options = options
        self.credentials = credentials
        self.source = source
        self.doctor = doctor
        self.guard = Guard(options)
        self.once = Once(source.now_ms)
        self.live = Live(Watch(source), source.now_ms)
        self._templates: Environment = environment()

    @property
    def user(self) -> str:
        return self.credentials.access_key if self.credentials else ""

    async def close(self) -> None:
        """Close the client."""
        await self.source.admin.close()

    def page(
        self,
        request: Request,
        template: str,
        *,
        status: int = 200,
        tab: str,
        live: bool = False,
        **context: Any,
    ) -> Response:
        """Render a page.

        Args:
            request: The request.
            template: The name of the template.
            status: The HTTP status.
            tab: The tab of the menu that is marked.
            live: Whether an open page is read again.
            **context: The values of the template.
        """
        text = self._templates.get_template(template).render(
            tab=tab,
            live=live,
            tabs=TABS,
            query=dict(request.query_params),
            path=request.url.path,
            options=self.options,
            token=self.guard.token,
            form_id=self.once.new_id(),
            user=self.user,
            **context,
        )
        return HTMLResponse(at_base(text, self.options.base_path), status)

    def problem(self, request: Request, status: int, message: str, *, title: str = "") -> Response:
        """Render a page about an error."""
        return self.page(
            request, "problem.html.j2", status=status, tab="", page=None, message=message,
            invalid=status == HTTPStatus.BAD_REQUEST,
            title=title or HTTPStatus(status).phrase, live=status == HTTPStatus.BAD_GATEWAY,
        )  # fmt: skip


def status_of(error: MqError) -> int:
    """Return the HTTP status of an error of the cluster."""
    if error.code in NOT_FOUND:
        return 404
    if error.code in INVALID:
        return 400
    if error.code is Code.NO_PERMISSION:
        return 403
    return 502
