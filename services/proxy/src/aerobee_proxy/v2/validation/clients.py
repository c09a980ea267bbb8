"""Validate a client's description of itself: its id and its client properties."""

from __future__ import annotations

import re
from collections.abc import Mapping

from apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.v2.status import Refused

CLIENT_ID_KEY = "x-mq-client-id"
MAX_CLIENT_ID = 512

MAX_CLIENT_PROPERTIES = 32
MAX_CLIENT_PROPERTY_VALUE = 256
MAX_CLIENT_PROPERTIES_BYTES = 4_096
CLIENT_PROPERTY_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)
RESERVED_CLIENT_PREFIX = "rocketmq."


def client_id(metadata: Mapping[str, str]) -> str:
    name = metadata.get(CLIENT_ID_KEY, "")
    if not name.strip():
        raise Refused(Code.CLIENT_ID_REQUIRED, f"the metadata lacks {CLIENT_ID_KEY}")
    if len(name) > MAX_CLIENT_ID:
        raise Refused(
            Code.CLIENT_ID_REQUIRED,
            f"{CLIENT_ID_KEY} has {len(name)} characters: use at most {MAX_CLIENT_ID}",
        )
    return name


def check_client_properties(pairs: Mapping[str, str]) -> None:
    problem = None
    if len(pairs) > MAX_CLIENT_PROPERTIES:
        problem = f"are {len(pairs)}: send at most {MAX_CLIENT_PROPERTIES}"
    elif (
        sum(len(k.encode()) + len(v.encode()) for k, v in pairs.items())
        > MAX_CLIENT_PROPERTIES_BYTES
    ):
        problem = f"have more than {MAX_CLIENT_PROPERTIES_BYTES} bytes together"
    for key, value in pairs.items():
        if not CLIENT_PROPERTY_KEY.fullmatch(key):
            problem = (
                f"have the key {key[:64]!r}: begin with a letter, at most 64 of A-Z a-z 0-9 _ . -"
            )
        elif key.startswith(RESERVED_CLIENT_PREFIX):
            problem = f"have the key {key!r}: {RESERVED_CLIENT_PREFIX} is reserved"
        elif len(value) > MAX_CLIENT_PROPERTY_VALUE:
            problem = f"are too long under {key!r}: at most {MAX_CLIENT_PROPERTY_VALUE} characters"
    if problem:
        raise Refused(Code.INVALID_CLIENT_PROPERTIES, f"the client properties {problem}")
