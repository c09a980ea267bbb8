"""Provide services whose handlers can change while the server runs.

A process that changes its role serves the handlers of its present role. Its port is open from the
start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from aerobee_chassis.rpc.call import Call, Handler
from aerobee_chassis.rpc.services import Service, declare


class Switch:
    """Own replaceable handlers. Pass `services` to the server.

    A call without a handler ends with the error that `refusal` creates.
    """

    def __init__(
        self, descriptors: Sequence[ServiceDescriptor], refusal: Callable[[], Exception]
    ) -> None:
        self._refusal = refusal
        self._handlers: Mapping[str, Handler] = {}
        self._calls: dict[asyncio.Task[Any], str] = {}  # in progress, one task each → its path
        self.services = [declare(each, self._handler) for each in descriptors]

    def serve(self, services: Sequence[Service]) -> None:
        """Send new calls to these services. Running calls continue."""
        self._handlers = {
            f"{service.name}/{method.name}": method.handler
            for service in services
            for method in service.methods
        }

    async def end_calls(self, but: Sequence[Service] = ()) -> None:
        """Refuse calls until `serve`, and cancel running calls, except calls of `but`.

        The callers of cancelled calls do not learn the outcome. Returns after the cancelled
        handlers have ended.
        """
        self.serve(but)
        calls = [task for task, path in self._calls.items() if path not in self._handlers]
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)

    def _handler(self, path: str) -> Handler:
        async def handle(request: Any, call: Call) -> Message | None:
            handler = self._handlers.get(path)
            if handler is None:
                raise self._refusal()
            task = asyncio.current_task()
            assert task is not None, "a handler runs in a task"
            self._calls[task] = path
            try:
                return await handler(request, call)
            finally:
                del self._calls[task]

        return handle
