"""Options of the brokers and of the name server behind a visitor, which have no processes."""

from __future__ import annotations

from typing import Any

from aerobee.broker.v1 import config_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from support.console.visitor import Visitor


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
