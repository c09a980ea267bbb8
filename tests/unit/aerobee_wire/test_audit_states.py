"""States of changes: each is of an RPC of the contract, without secrets, and bounded."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee.access.v1 import access_pb2
from aerobee.broker.v1 import config_pb2, offset_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import Default

from aerobee_wire.audit_states import MOST_CHARACTERS, STATE_RPCS
from aerobee_wire.permissions import TABLE, rpc_name

PATHS = {rpc_name(path): path for path in TABLE}


@pytest.mark.parametrize("name", STATE_RPCS)
def test_state_is_of_an_rpc_of_the_same_service(name: str) -> None:
    path, found = PATHS[name], STATE_RPCS[name]
    assert TABLE[path].is_change
    service = Default().FindServiceByName(path[1:].rpartition("/")[0])
    change = service.methods_by_name[path.rpartition("/")[2]]
    other = service.methods_by_name[found.method]
    request: Any = message_factory.GetMessageClass(change.input_type)()
    message_factory.GetMessageClass(other.input_type)(**found.values(request))
    found.state(request, message_factory.GetMessageClass(other.output_type)())


def test_states_have_the_part_that_a_change_is_about() -> None:
    options = {"a": "1", "b": "2"}
    request = config_pb2.UpdateConfigRequest(entries={"a": "3"})
    answer = config_pb2.GetConfigResponse(
        options=[config_pb2.ConfigOption(key=key, value=value) for key, value in options.items()]
    )
    assert STATE_RPCS["ConfigService/UpdateConfig"].state(request, answer) == {"a": "1"}
    other = namesrv_pb2.UpdateRuntimeConfigRequest(unset=["b"])
    entries = namesrv_pb2.GetRuntimeConfigResponse(entries=options)
    found = STATE_RPCS["NamesrvService/UpdateRuntimeConfig"].state(other, entries)
    assert found == {"b": "2"}

    quotas = [access_pb2.Quota(subject=f"User:{name}", calls=5) for name in "ab"]
    listed = access_pb2.ListQuotasResponse(quotas=quotas)
    deletion = STATE_RPCS["BrokerAccessService/DeleteQuota"]
    asked = access_pb2.DeleteQuotaRequest(subject="User:b")
    assert deletion.state(asked, listed)["subject"] == "User:b"
    assert deletion.state(access_pb2.DeleteQuotaRequest(subject="User:c"), listed) is None

    offsets = [offset_pb2.QueueOffset(topic="t", queue_id=1, queue_offset=9)]
    answered = offset_pb2.QueryConsumerOffsetsResponse(offsets=offsets)
    reset = offset_pb2.ResetConsumerOffsetsRequest(consumer_group="g", topic="t")
    state = STATE_RPCS["OffsetService/ResetConsumerOffsets"]
    assert state.values(reset) == {"consumer_group": "g", "topic": "t"}
    assert state.state(reset, answered) == {"t 1": 9}


def test_state_of_a_user_has_no_secret() -> None:
    assert "secret" not in {
        field.name
        for field in access_pb2.UserInfo.DESCRIPTOR.fields
        if field.type == field.TYPE_STRING
    }
    request = access_pb2.PutUserRequest(username="ann", secret="hunter2")
    answer = access_pb2.GetUserResponse(user=access_pb2.UserInfo(username="ann", secrets=1))
    state = STATE_RPCS["NamesrvAccessService/PutUser"].state(request, answer)
    assert state == {"username": "ann", "secrets": 1}


def test_long_states_are_replaced_by_their_length() -> None:
    policies = [access_pb2.Policy(resource=f"Topic:{number}") for number in range(1_000)]
    answer = access_pb2.GetAclResponse(policies=policies)
    request = access_pb2.PutAclRequest(username="ann")
    state = STATE_RPCS["NamesrvAccessService/PutAcl"].state(request, answer)
    assert state["characters"] > MOST_CHARACTERS
