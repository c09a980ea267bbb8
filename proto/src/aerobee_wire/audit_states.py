"""Define how an audit log gets the state before and after a change: by another RPC of the service.

The other RPC answers without secrets and bodies, so that a line has none either. This module does
no I/O, and does not know the generated code: it reads fields by their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

MOST_CHARACTERS = 4_096  # of a state as JSON: a user may have 1,000 policies

# Arguments: the request of the change, and the answer of the other RPC.
Pick = Callable[[Any, Any], Any]


def _whole(_: Any, answer: Any) -> Any:
    return json_format.MessageToDict(answer, preserving_proto_field_name=True)


@dataclass(frozen=True, slots=True)
class StateRpc:
    """The RPC that answers with the state that a change is about.

    Attributes:
        method: The RPC, in the same service.
        fields: Its fields, each with the path of the field of the change that has the value.
        pick: Returns the part of its answer that the change is about, as JSON.
    """

    method: str
    fields: Mapping[str, str]
    pick: Pick = _whole

    def values(self, request: Any) -> dict[str, Any]:
        """Return the fields of the other request for the request of a change."""
        found = {}
        for name, path in self.fields.items():
            value = request
            for part in path.split("."):
                value = getattr(value, part)
            found[name] = value
        return found

    def state(self, request: Any, answer: Any) -> Any:
        """Return the state as JSON. One that is too long is replaced by its length."""
        state = self.pick(request, answer)
        length = len(json.dumps(state))
        return state if length <= MOST_CHARACTERS else {"characters": length}


def _keys(request: Any) -> set[str]:
    return {*request.entries, *request.unset}


def _options(request: Any, answer: Any) -> Any:
    keys = _keys(request)
    return {each.key: each.value for each in answer.options if each.key in keys}


def _entries(request: Any, answer: Any) -> Any:
    keys = _keys(request)
    return {key: value for key, value in answer.entries.items() if key in keys}


def _policies(_: Any, answer: Any) -> Any:
    return [_whole(None, each) for each in answer.policies]


def _quota(subject: str) -> Pick:
    def pick(request: Any, answer: Any) -> Any:
        wanted = request
        for part in subject.split("."):
            wanted = getattr(wanted, part)
        return next((_whole(None, each) for each in answer.quotas if each.subject == wanted), None)

    return pick


def _offsets(_: Any, answer: Any) -> Any:
    return {f"{each.topic} {each.queue_id}": each.queue_offset for each in answer.offsets}


def _in(field: str) -> Pick:
    return lambda request, answer: _whole(None, getattr(answer, field))


_USER = StateRpc("GetUser", {"username": "username"}, _in("user"))
_POLICIES = StateRpc("GetAcl", {"username": "username"}, _policies)
_OFFSETS = StateRpc(
    "QueryConsumerOffsets", {"consumer_group": "consumer_group", "topic": "topic"}, _offsets
)


def _topic(path: str) -> StateRpc:
    return StateRpc("GetTopic", {"topic": path}, _in("topic"))


def _group(path: str) -> StateRpc:
    return StateRpc("GetGroup", {"consumer_group": path}, _in("group"))


# The RPC for the state of a change, by "Service/Method" without the package.
STATE_RPCS: Mapping[str, StateRpc] = {
    **{
        f"{service}/{method}": state
        for service in ("NamesrvAccessService", "BrokerAccessService")
        for method, state in {
            "PutUser": _USER,
            "DeleteUser": _USER,
            "PutAcl": _POLICIES,
            "DeleteAcl": _POLICIES,
            "PutQuota": StateRpc("ListQuotas", {}, _quota("quota.subject")),
            "DeleteQuota": StateRpc("ListQuotas", {}, _quota("subject")),
        }.items()
    },
    "AdminService/PutTopic": _topic("topic.topic"),
    "AdminService/UpdateTopic": _topic("topic.topic"),
    "AdminService/SpecifyMessageType": _topic("topic"),
    "AdminService/DeleteTopic": _topic("topic"),
    "AdminService/PutGroup": _group("group.consumer_group"),
    "AdminService/UpdateGroup": _group("group.consumer_group"),
    "AdminService/DeleteGroup": _group("consumer_group"),
    "OffsetService/ResetConsumerOffsets": _OFFSETS,
    "OffsetService/ForgetConsumerOffsets": _OFFSETS,
    "ConfigService/UpdateConfig": StateRpc("GetConfig", {}, _options),
    "NamesrvService/UpdateRuntimeConfig": StateRpc("GetRuntimeConfig", {}, _entries),
}
