"""The contracts of others beside code of another package that has the same names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from aerobee_foreign import POOL
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from aerobee_foreign.etcd.v3 import etcd_pb2
from aerobee_foreign.google.protobuf.timestamp_pb2 import Timestamp
from aerobee_foreign.grpc.health.v1 import health_pb2
from aerobee_foreign.grpc.reflection.v1 import reflection_pb2
from aerobee_foreign.grpc.reflection.v1alpha import reflection_pb2 as reflection_v1alpha_pb2
from google.protobuf import descriptor_pool

FILES = (
    admin_pb2,
    definition_pb2,
    service_pb2,
    etcd_pb2,
    health_pb2,
    reflection_pb2,
    reflection_v1alpha_pb2,
)
# Another package declares a name of ours, in a file and with fields of its own.
OTHERS = """
from google.protobuf import descriptor_pb2, descriptor_pool
for package, name in (
    ("apache.rocketmq.v2", "Message"),
    ("etcdserverpb", "RangeRequest"),
    ("grpc.health.v1", "HealthCheckRequest"),
):
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package=package)
    file.message_type.add(name=name).field.add(name="other", number=1, type=9, label=1)
    descriptor_pool.Default().Add(file)
"""
OURS = """
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2, service_pb2
from aerobee_foreign.etcd.v3 import etcd_pb2
from aerobee_foreign.grpc.health.v1 import health_pb2
born = definition_pb2.SystemProperties(born_timestamp={"seconds": 3})
message = definition_pb2.Message(body=b"1", system_properties=born)
request = service_pb2.SendMessageRequest.FromString(
    service_pb2.SendMessageRequest(messages=[message]).SerializeToString()
)
assert request.messages[0] == message
assert born.born_timestamp.ToMilliseconds() == 3000
assert etcd_pb2.RangeRequest(key=b"1").SerializeToString() == b"\\n\\x011"
assert health_pb2.HealthCheckRequest(service="1").SerializeToString() == b"\\n\\x011"
"""


def test_no_foreign_file_is_in_the_default_pool() -> None:
    for module in FILES:
        assert module.DESCRIPTOR.pool is POOL
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindFileByName(module.DESCRIPTOR.name)


def test_a_class_says_which_module_has_it() -> None:
    assert etcd_pb2.RangeRequest.__module__ == "aerobee_foreign.etcd.v3.etcd_pb2"
    assert type(definition_pb2.SystemProperties().born_timestamp) is Timestamp


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("order", [(OTHERS, OURS), (OURS, OTHERS)], ids=["theirs", "ours"])
def test_another_package_may_have_the_same_names(
    order: tuple[str, str], implementation: str
) -> None:
    subprocess.run(
        [sys.executable, "-c", "".join(order)],
        check=True,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        timeout=60,
    )
