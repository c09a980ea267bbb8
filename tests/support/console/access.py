"""The access table of a real name server behind a visitor, without a process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.descriptions import PolicyDescription
from aerobee_cluster.access.handlers import AccessHandlers
from aerobee_cluster.access.store import AccessStore
from aerobee_wire.rpcs import NAMESRV_ACCESS
from support.console.visitor import NOW_MS, Visitor


class _Call:
    peer = "127.0.0.1:40000"

    async def write(self, message: Any) -> None:
        raise AssertionError("no RPC of a test writes a stream")


class Users:
    """The table. Name server and brokers have it at once, unless `behind` names a broker.

    `checked` is whether the name server checks users.
    """

    def __init__(self, visitor: Visitor) -> None:
        self.store = AccessStore("n", lambda: NOW_MS)
        self.checked = False
        self._admin = visitor.admin
        handlers = AccessHandlers(self.store, private=False, log=lambda *_, **__: None)
        for name, rpc in vars(NAMESRV_ACCESS).items():
            if rpc.method not in ("Watch", "MergeTable"):
                answer = self._answer(getattr(handlers, name))
                visitor.transport.answers[rpc.method] = answer
        visitor.transport.answers["GetRuntimeConfig"] = self._options

    @staticmethod
    def _answer(handler: Callable[..., Awaitable[Any]]) -> Callable[[str, Any], Awaitable[Any]]:
        async def answer(_: str, request: Any) -> Any:
            return await handler(request, _Call())

        return answer

    def _options(self, _: str, __: Any) -> Any:
        value = "true" if self.checked else "false"
        entries = {"authenticationEnabled": value}
        sources = {"authenticationEnabled": "default"}
        return namesrv_pb2.GetRuntimeConfigResponse(entries=entries, sources=sources)

    def secrets(self, name: str) -> list[str]:
        user = self.store.table.user(name)
        return [] if user is None else [secret.decode() for secret in user.secrets]

    async def add(self, name: str, *policies: PolicyDescription, **more: Any) -> None:
        admin: AsyncAdminClient = self._admin
        await admin.create_user(name, f"the secret of {name}", **more)
        if policies:
            await admin.create_policies(name, policies)
