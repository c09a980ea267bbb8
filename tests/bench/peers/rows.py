"""The rows of the bench: the work of each client of each product, and its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PACED_RATE = 500  # messages a second


@dataclass(frozen=True)
class Size:
    """How much a run does. The small one only shows that everything works."""

    send_s: float = 3.0
    warm_s: float = 5.0
    paced_s: float = 10.0
    share: float = 1.0  # of the messages that a client's `drained` names
    letters: int = 10_000
    syncs_s: float = 1.0
    settle_s: float = 5.0
    idle_s: float = 20.0


SMALL = Size(
    send_s=0.3, warm_s=0.3, paced_s=1, share=0.02, letters=500, syncs_s=0.3, settle_s=0.5, idle_s=1
)


@dataclass(frozen=True)
class Row:
    title: str
    options: dict[str, Any]


# Of a product without a client. `ready`: until the first message is acknowledged.
OF_PRODUCTS = {
    "ready": "ready, s",
    "idle": "idle: % of a core · wake-ups/s",
    "memory": "anonymous memory, fresh · after the rows, MB",
}
SENDS = ("send_1", "send_64", "send_1024")
READS = ("drain", "push", "paced")
V2 = ("v2_send_1", "v2_send_8", "v2_send_64", "v2_drain_8", "v2_drain_64")
# Client → its rows, in the order of their run. The last ones take longest or leave most behind.
OF_CLIENTS: dict[str, tuple[str, ...]] = {
    "aerobee": (*SENDS, "batches", *READS, "letters", "syncs"),
    "nats": (*SENDS, "batches", *READS, "letters", "syncs"),
    "rabbitmq": (*SENDS, *READS, "letters", "syncs"),
    "redis": (*SENDS, "batches", *READS, "syncs"),
    "redis_callers": ("send_64", "send_1024"),
    "confluent": (*SENDS, "batches", *READS, "letters", "syncs"),
    "aiokafka": (*SENDS, "batches", *READS),
    "rocketmq": (*SENDS, *READS, "letters", "syncs"),
    "lean_v2": V2,
}
ALL = (*SENDS, "batches", *READS, "letters", *V2, *OF_PRODUCTS, "syncs")


def rows(size: Size) -> dict[str, Row]:
    sends = {
        f"{prefix}send_{in_flight}": Row(
            f"send, {in_flight:,} in flight", {"in_flight": in_flight, "seconds": size.send_s}
        )
        for prefix, in_flights in (("", (1, 64, 1_024)), ("v2_", (1, 8, 64)))
        for in_flight in in_flights
    }
    receives = {
        f"v2_drain_{in_flight}": Row(
            f"receive 32 and acknowledge, {in_flight} in flight", {"share": size.share}
        )
        for in_flight in (8, 64)
    }
    return (
        sends
        | receives
        | {
            "batches": Row("batches of 128", {"seconds": size.send_s}),
            "drain": Row("receive and settle", {"share": size.share}),
            "push": Row("push consume", {"share": size.share}),
            "paced": Row(
                f"send to handler at {PACED_RATE}/s: p50 · p99, ms",
                {"rate": PACED_RATE, "seconds": size.paced_s},
            ),
            "letters": Row(
                f"{size.letters:,} messages, a tenth becomes dead letters, s",
                {"count": size.letters},
            ),
            "syncs": Row(
                "syncs of the disk for a send, 1 in flight",
                {"in_flight": 1, "seconds": size.syncs_s},
            ),
        }
    )
