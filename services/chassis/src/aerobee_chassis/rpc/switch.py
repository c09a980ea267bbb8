"""Services whose handlers change while the server runs: a process that has roles serves those of
the one that it has, on a port that is open from the start.
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
    """`services`: for the server. What no handler is there for ends with the error that `refusal`
    makes."""

    def __init__(
        self, descriptors: Sequence[ServiceDescriptor], refusal: Callable[[], Exception]
    ) -> None:
        self._refusal = refusal
        self._handlers: Mapping[str, Handler] = {}
        self._calls: dict[asyncio.Task[Any], str] = {}  # under way, one task each; and its path
        self.services = [declare(each, self._handler) for each in descriptors]

    def serve(self, services: Sequence[Service]) -> None:
        """From now on calls go to these. Those that are under way go on."""
        self._handlers = {
            f"{service.name}/{method.name}": method.handler
            for service in services
            for method in service.methods
        }

    async def end_calls(self, but: Sequence[Service] = ()) -> None:
        """Refuses calls until `serve`, and cancels those under way: for their callers the outcome
        is unknown. Returns when their handlers are over. Those of `but` go on."""
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
