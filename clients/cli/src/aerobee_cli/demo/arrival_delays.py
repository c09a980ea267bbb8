"""The consumer of the demo: mean arrival delay by carrier. It does not use the network."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from aerobee_wire.topics import is_retry

if TYPE_CHECKING:
    from aerobee_client import ReceivedMessage


class NeverArrived(Exception):
    """A flight without an arrival time or an arrival delay: cancelled, or diverted."""


class ArrivalDelays:
    """Delays by carrier. Each flight counts once, also after several deliveries.

    A message is redelivered after a failure, and possibly after a crash of a broker or a consumer.

    `arrived`: ids of the messages whose delay was counted. `retries`: (message id, reconsume times)
    of redeliveries by the broker. While the broker is unavailable, the client retries a message
    and increases its count each time. So only the first delivery of each stored record counts.
    """

    def __init__(self) -> None:
        self.arrived: set[str] = set()
        self.retries: set[tuple[str, int]] = set()
        # Offset message id of a retry → reconsume times at its first delivery.
        self._times: dict[str, int] = {}
        self._total: dict[str, int] = defaultdict(int)
        self._count: dict[str, int] = defaultdict(int)

    async def on_flight(self, message: ReceivedMessage) -> None:
        """Count a flight. Raises NeverArrived, whose text becomes the reason of the dead letter."""
        if is_retry(message.stored_topic):
            times = self._times.setdefault(message.offset_message_id, message.reconsume_times)
            self.retries.add((message.message_id, times))
        flight = json.loads(message.body)
        if flight["arr_time"] is None or flight["arr_delay"] is None:
            raise NeverArrived(_never_arrived(flight))
        if message.message_id not in self.arrived:
            self.arrived.add(message.message_id)
            self._total[flight["carrier"]] += flight["arr_delay"]
            self._count[flight["carrier"]] += 1

    def mean_by_carrier(self) -> dict[str, float]:
        """Return the mean delay in minutes; below 0 is early."""
        return {
            carrier: self._total[carrier] / self._count[carrier] for carrier in sorted(self._count)
        }

    def count_by_carrier(self) -> dict[str, int]:
        """Return the number of flights whose delay was counted."""
        return dict(sorted(self._count.items()))


def _never_arrived(flight: dict[str, object]) -> str:
    missing = "arrival time" if flight["arr_time"] is None else "arrival delay"
    day = f"{flight['year']}-{flight['month']:02}-{flight['day']:02}"
    number = f"{flight['carrier']}{flight['flight']}"
    return f"no {missing}: {number} of {day}, {flight['origin']} to {flight['dest']}"
