"""Look up the queues of a stream and their offsets at every trigger.

Each trigger makes one call for each topic and broker. Every 5 s, it also asks a name server for
topics and brokers. If no name server answers, the known brokers are used. A broker that does not
answer affects only its own queues.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aerobee_spark.errors import Code, MqError
from aerobee_spark.reading.offsets import Bounds, Queue
from aerobee_spark.reading.options import ALL_GROUPS, ReadOptions
from aerobee_spark.reading.planning import broker_addresses
from aerobee_spark.stream.admission import Place, Seen
from aerobee_spark.stream.positions import named_topics, selects, topics_of_group
from aerobee_wire.route import READ

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import TopicBounds

log = logging.getLogger(__name__)

# The longest delay until a new topic or broker is found. New queues of a known topic and broker are
# found at the next trigger.
DISCOVERY_INTERVAL_S = 5.0
# The interval between calls while a run waits for a broker, in seconds.
POLL_S = 0.2


@dataclass(slots=True)
class Watch:
    """Looks up the queues of a stream, and remembers the addresses of brokers between calls."""

    admin: AdminClient
    options: ReadOptions
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    # Broker name → address.
    addresses: dict[str, str] = field(default_factory=dict)
    # Broker name, or "" for the name servers → error. Only brokers and name servers that do not
    # answer are listed. Each outage is logged once.
    away: dict[str, MqError] = field(default_factory=dict)
    _places: set[Place] = field(default_factory=set)
    _discovered: bool = False
    # The next time to ask a name server, on the monotonic clock.
    _due_at: float = 0.0

    def look(self, known: Iterable[Queue] = (), *, must_exist: bool = False) -> Seen:
        """Ask brokers for the offsets of all queues that the options select.

        Args:
            known: queues to look up in addition.
            must_exist: ask a name server even if its last answer is recent. If a topic that the
                options name is missing, raise MqError with the code TOPIC_NOT_EXIST.

        Raises:
            MqError: no name server has answered so far.
        """
        wanted = frozenset(known)
        self._discover_if_due(must_exist=must_exist)
        places = self._places | {queue[:2] for queue in wanted}
        asked = sorted(place for place in places if place[1] in self.addresses)
        answers = self.admin.topic_bounds(asked, self.addresses)
        self._log_changes(places, answers)
        bounds: dict[Queue, Bounds] = {}
        for answer in answers.values():
            if not isinstance(answer, MqError):
                bounds |= self._readable(answer, wanted)
        return Seen(
            bounds,
            frozenset(at for at, answer in answers.items() if _no_topic(answer)),
            frozenset(
                at
                for at, answer in answers.items()
                if not isinstance(answer, MqError) and answer.permission & READ
            ),
        )

    def look_until(self, target: dict[Queue, int], known: Mapping[Queue, int]) -> Seen:
        """Look up offsets during a run that ends at `target`, and wait for unavailable brokers.

        Wait until the brokers of all queues that have not reached `target` answer, but at most
        pullTimeoutMs. Without the wait, Spark would end a run under AvailableNow while a broker
        restarts. After the wait, remove the queues of brokers that do not answer from `target`.
        """
        until = self.monotonic() + self.options.pull_timeout_ms / 1000
        seen = self.look(known)
        while silent := [
            queue
            for queue, last in target.items()
            if known.get(queue, -1) < last and not seen.has_answer(queue)
        ]:
            if self.monotonic() >= until:
                for queue in silent:
                    log.warning("%s is not read in this run: its broker is unavailable", queue)
                    del target[queue]
                break
            self.sleep(POLL_S)
            seen = self.look(known)
        return seen

    def _readable(self, answer: TopicBounds, known: frozenset[Queue]) -> dict[Queue, Bounds]:
        """Return the offsets of the readable queues of a topic on one broker.

        If the number of queues was reduced, the surplus queues in `known` stay readable, so that
        the stream reads them to their end.
        """
        if not answer.permission & READ:
            return {}
        found: dict[Queue, Bounds] = {}
        for queue_id, offsets in answer.bounds.items():
            queue = Queue(answer.topic, answer.broker_name, queue_id)
            if self.options.assigned and queue not in self.options.assigned:
                continue
            if queue_id < answer.read_queue_count or queue in known:
                found[queue] = Bounds(*offsets)
        return found

    # ---- discovery ----

    def _discover_if_due(self, *, must_exist: bool) -> None:
        if self._discovered and not must_exist and self.monotonic() < self._due_at:
            return
        try:
            self.addresses = broker_addresses(self.admin)
            self._places = {
                (topic, broker_name)
                for topic in self._topics()
                for broker_name in self._brokers_of(topic, must_exist=must_exist)
            }
        except MqError as error:
            if not self._discovered or error.code is not Code.NAMESRV_UNREACHABLE:
                raise
            self._went_away("", error)
        else:
            self._came_back("")
        self._discovered = True
        self._due_at = self.monotonic() + DISCOVERY_INTERVAL_S

    def _topics(self) -> Iterable[str]:
        options = self.options
        if named := named_topics(options):
            return named
        if options.consumer_group and options.consumer_group != ALL_GROUPS:
            return topics_of_group(options)
        re.compile(options.topic_pattern)
        names = self.admin.topic_names(include_derived=True)
        return [name for name in names if selects(options, name)]

    def _brokers_of(self, topic: str, *, must_exist: bool) -> list[str]:
        try:
            route = self.admin.topic_route(topic)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
            if must_exist and topic in named_topics(self.options):
                raise
            return []
        return [data.broker_name for data in route.queues if data.permission & READ]

    def _log_changes(
        self, places: Iterable[Place], answers: dict[Place, TopicBounds | MqError]
    ) -> None:
        """Log once when a broker becomes unavailable, and once when it is available again."""
        silent: dict[str, MqError] = {}
        for place in places:
            answer = answers.get(place, _unregistered(place[1]))
            if isinstance(answer, MqError) and not _no_topic(answer):
                silent.setdefault(place[1], answer)
        for name, error in silent.items():
            self._went_away(name, error)
        for name in [name for name in self.away if name and name not in silent]:
            self._came_back(name)
        if silent:
            self._due_at = self.monotonic()  # the broker may have moved

    def _went_away(self, name: str, error: MqError) -> None:
        if name not in self.away:
            effect = (
                f"broker {name} is unavailable, its queues keep their offset"
                if name
                else "no name server answers, known queues are still read"
            )
            log.warning("%s: %s", effect, error.message)
        self.away[name] = error

    def _came_back(self, name: str) -> None:
        if self.away.pop(name, None) is not None:
            log.warning("%s is available again", f"broker {name}" if name else "the name server")


def _no_topic(answer: TopicBounds | MqError) -> bool:
    return isinstance(answer, MqError) and answer.code is Code.TOPIC_NOT_EXIST


def _unregistered(broker_name: str) -> MqError:
    return MqError(
        Code.BROKER_NOT_EXIST,
        f"the broker {broker_name} is not registered with the name server: start it",
        about=broker_name,
    )
