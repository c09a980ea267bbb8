"""The servers behind a visitor, without processes: the access table, and options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aerobee.broker.v1 import config_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.descriptions import PolicyDescription
from aerobee_cluster.access.handlers import AccessHandlers
from aerobee_cluster.access.store import AccessStore
from aerobee_wire.rpcs import NAMESRV_ACCESS
from support.console.visitor import NOW_MS, Visitor

# ---- access ----
#
# The access table of a real name server behind a visitor, without a process.


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


# ---- options ----
#
# Options of the brokers and of the name server behind a visitor, which have no processes.


def configured(visitor: Visitor) -> dict[str, str]:
    """Give each process the options that this returns, which changes of options change."""
    values = {"fileReservedTime": "72", "listenPort": "10911"}
    changed: set[str] = set()

    def source(key: str) -> str:
        return "run time" if key in changed else "default"

    def get(_: str, __: Any) -> Any:
        answer = config_pb2.GetConfigResponse()
        for key, value in values.items():
            answer.options.add(
                key=key, value=value, source=source(key), changeable=key != "listenPort"
            )
        return answer

    def get_of_namesrv(_: str, __: Any) -> Any:
        return namesrv_pb2.GetRuntimeConfigResponse(
            entries=values,
            sources={key: source(key) for key in values},
            changeable=["fileReservedTime"],
        )

    def update(request: Any) -> None:
        values.update(request.entries)
        changed.update(request.entries)
        for key in request.unset:
            values[key] = "72"
            changed.discard(key)

    def update_broker(_: str, request: Any) -> Any:
        update(request)
        return config_pb2.UpdateConfigResponse()

    def update_namesrv(_: str, request: Any) -> Any:
        update(request)
        return namesrv_pb2.UpdateRuntimeConfigResponse()

    visitor.transport.answers |= {
        "GetConfig": get,
        "GetRuntimeConfig": get_of_namesrv,
        "UpdateConfig": update_broker,
        "UpdateRuntimeConfig": update_namesrv,
    }
    return values
