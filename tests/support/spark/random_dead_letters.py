"""Random dead letters and retries of a group, with everything that a producer may send."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from aerobee_wire import compression, message_id, properties, record, topics
from support.client.fake_broker import FakeBroker

GROUP = "arrivals"
DEAD, RETRY = topics.dead_letter_topic(GROUP), topics.retry_topic(GROUP)

TAGS = (None, "", "UA", "AA", "B6", "été", "=1+1")
REASONS = (None, "LookupError", "Größe", "x" * 300)
KEYS = (None, "", "a", "a b", "b  a", "k1 k2 k1", "ключ")
ORIGINS = (None, "flights", "weather")
HOSTS = (message_id.pack_host("10.0.0.9:50000"), message_id.pack_host("[2001:db8::7]:1"))
# Text, JSON, JSON with half of a surrogate pair, no UTF-8, empty.
BODIES = (
    b"late",
    b'{"carrier": "UA", "delay": null}',
    rb'{"name": "\ud83d"}',
    b"\xff\xfe\x00",
    b"",
    b"\xc3\xa9" * 900,
)


# Unique message ids that there are.
IDS = 233


def put_random(broker: FakeBroker, rng: random.Random, count: int) -> None:
    """In two queues, whose ids are those of every other broker."""
    for _ in range(count):
        fields, named = random_message(rng)
        encoded = properties.encode(named)
        if rng.random() < 0.1:
            encoded += rng.choice([b"no\x01\xff\xfe\x02", b"UNIQ_KEY\x01twice\x02", b"cut"])
        broker.put(
            rng.choice([DEAD, DEAD, RETRY]),
            queue_id=rng.randrange(2),
            store_timestamp_ms=1_760_000_000_000 + rng.randrange(40) * 60_000,
            properties=encoded,
            reconsume_times=rng.randrange(17),
            **fields,
        )


def random_message(rng: random.Random) -> tuple[dict[str, Any], Mapping[str, str]]:
    body, flag = rng.choice(BODIES), 0
    if rng.random() < 0.3:
        method, flag = rng.choice(list(compression.SYS_FLAGS.items()))
        body = compression.compress(body, method, 3)
        if rng.random() < 0.5:
            body = body[: rng.randrange(len(body) + 1)] + rng.randbytes(rng.randrange(3))
    host = rng.choice(HOSTS)
    flag |= record.BORN_HOST_V6 if len(host) > 8 else 0
    # Also times that no calendar has.
    born = rng.choice([1_759_999_999_000, 1_760_000_900_000, -(1 << 62), (1 << 62)])
    named = {
        "UNIQ_KEY": f"{rng.randrange(IDS):032X}",
        "TAGS": rng.choice(TAGS),
        "KEYS": rng.choice(KEYS),
        "DLQ_REASON": rng.choice(REASONS),
        "DLQ_REASON_DESCRIPTION": rng.choice([None, "no arrival"]),
        "REDRIVE_TIMES": rng.choice([None, None, "1", "2", "x"]),
        "DLQ_ORIGIN_TOPIC": rng.choice(ORIGINS),
        "RETRY_TOPIC": rng.choice(ORIGINS),
        "ORIGIN_MESSAGE_ID": rng.choice([None, "0A"]),
        "trace": rng.choice([None, "t-1"]),
    }
    fields = {"body": body, "sys_flag": flag, "born_timestamp_ms": born, "born_host": host}
    return fields, {name: value for name, value in named.items() if value is not None}
