"""Send a command to a client on its telemetry stream, and wait for the client's answer.

Only clients with a stream at this proxy can be asked.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable

from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import TelemetryCommand

from aerobee_proxy.v2.sessions import Session
from aerobee_proxy.v2.status import Refused

ANSWER_S = 5.0  # a client that needs longer is reported as silent


class ClientCommands:
    """The commands that clients have not answered yet, by nonce."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Session, asyncio.Future[TelemetryCommand]]] = {}

    async def ask(
        self, session: Session, command: Callable[[str], TelemetryCommand]
    ) -> TelemetryCommand:
        """Send a command to a client, and return its answer.

        `command` makes the command from a nonce, which the answer repeats. Raises Refused with the
        code NOT_FOUND if the client holds no stream, or REQUEST_TIMEOUT if it does not answer.
        """
        if not session.streams:
            raise Refused(
                Code.NOT_FOUND,
                f"client {session.client_id!r} holds no telemetry stream at this proxy: retry when "
                "it is connected",
            )
        nonce = secrets.token_hex(16)
        answer: asyncio.Future[TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._waiting[nonce] = session, answer
        try:
            # Some SDKs hold two streams, and one of them may be about to end.
            random.choice(list(session.streams)).offer(command(nonce))
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            raise Refused(
                Code.REQUEST_TIMEOUT,
                f"client {session.client_id!r} did not answer within {ANSWER_S:g} s: it may be "
                "busy, or its SDK does not know the command",
            ) from None
        finally:
            del self._waiting[nonce]

    def answered(self, command: TelemetryCommand, session: Session) -> None:
        """Take a message of a client. It is ignored if it answers no command to this client."""
        kind = command.WhichOneof("command")
        if kind not in ("thread_stack_trace", "verify_message_result"):
            return
        waiting = self._waiting.get(getattr(command, kind).nonce)
        if waiting is None:
            return
        asked, answer = waiting
        same = (asked.client_id, asked.user) == (session.client_id, session.user)
        if same and not answer.done():
            answer.set_result(command)
