"""Convert dead letters to the messages that a redrive stores on this broker.

The rules of a redrive depend on the names of a letter's properties, and nearly always not on their
values. So the rules are applied once for the letters with the same names: to marks in place of the
values. The result is a `_Plan`, into which each of these letters only puts its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

from aerobee_broker.delivery.letters.selection import OpenedLetter
from aerobee_broker.errors import MessageIllegal, NoPermission, TopicNotExist
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import redrive as rules
from aerobee_wire.compression import compression_bits
from aerobee_wire.queues.choice import queue_of_group
from aerobee_wire.record import CRC_TAIL_BYTES
from aerobee_wire.redrive import Target
from aerobee_wire.status import MqError

_MAX_PROPERTIES = props.MAX_BYTES - CRC_TAIL_BYTES
_MAX_PLANS = 256  # of one maker; more different letters are converted one by one
# Names of properties whose values decide how a letter is converted.
_DECIDING = frozenset(
    name.encode()
    for name in (props.REDRIVE_TIMES, props.SHARDING_KEY, props.LITE_TOPIC, props.PRIORITY)
)
_MARK = "\x01"  # begins a mark. No value contains it


class _Plan(NamedTuple):
    """The conversion of letters with the same names of properties.

    `text` is the properties string with a place for each of the values that `choose` returns. With
    `has_offset_id`, it chooses from the values and the offset message id behind them. `topic` is
    the number of the value that names the topic, or the topic itself.
    """

    text: bytes
    choose: Callable[[Sequence[bytes]], tuple[bytes, ...]]
    has_offset_id: bool
    topic: int | str


class RedrivenMessages:
    """Makes the messages of one redrive at `now_ms`. `find` returns a topic, or None.

    Messages without an order go to the queues in turn, `in_a_row` at a time. It does not notice
    that a topic changes.
    """

    def __init__(
        self,
        find: Callable[[str], TopicConfig | None],
        consumer_group: str,
        target: Target,
        now_ms: int,
        in_a_row: int = 1,
    ) -> None:
        self._find = find
        self._consumer_group = consumer_group
        self._target = target
        self._now_ms = now_ms
        self._in_a_row = in_a_row
        self._placed = 0
        self._plans: dict[tuple[bytes, ...], _Plan | None] = {}
        self._topics: dict[bytes | str, TopicConfig] = {}

    def check_target(self) -> None:
        """Raise TopicNotExist or NoPermission if messages cannot be sent to the target topic."""
        if self._target.topic:
            self._topic(self._target.topic)

    def message(self, letter: OpenedLetter) -> NewMessage:
        """Return the message for a dead letter.

        Raises MqError with the code MESSAGE_ILLEGAL, TOPIC_NOT_EXIST or NO_PERMISSION if it cannot
        be sent.
        """
        record = letter.record
        try:
            plan = self._plans[letter.names]
        except KeyError:
            plan = self._plan(letter.names)
        if plan is None:
            topic = rules.topic_for(self._target, self._consumer_group, letter.handled)
            config = self._topic(topic)
            queue_id, properties = self._queue(config, letter), self._properties(letter)
        else:
            values, where = letter.values, plan.topic
            name = where if isinstance(where, str) else values[where]
            config = self._topics.get(name) or self._topic(name)
            if plan.has_offset_id:
                values = [*values, record.offset_message_id.encode()]
            queue_id, properties = self._another_queue(config), plan.text % plan.choose(values)
        if not record.body:
            raise MessageIllegal("the body is empty", "body")
        if len(properties) > _MAX_PROPERTIES:
            raise MessageIllegal(
                f"the properties would have {len(properties)} bytes: at most {_MAX_PROPERTIES}",
                "properties",
            )
        return NewMessage(
            config.name,
            queue_id,
            record.body,
            properties,
            record.flag,
            compression_bits(record.sys_flag),
            self._now_ms,
            record.born_host_packed,
        )

    def _plan(self, names: tuple[bytes, ...]) -> _Plan | None:
        """Return the plan for letters with these properties.

        Return None if values decide, or if there are too many plans.
        """
        if len(self._plans) >= _MAX_PLANS:
            return None
        has_plan = names and _DECIDING.isdisjoint(names)
        plan = self._plans[names] = self._new_plan(names) if has_plan else None
        return plan

    def _new_plan(self, names: tuple[bytes, ...]) -> _Plan | None:
        try:
            marks = {name.decode(): f"{_MARK}{number}" for number, name in enumerate(names)}
            topic = rules.topic_for(self._target, self._consumer_group, marks)
        except (UnicodeDecodeError, MqError):  # each of these letters gets its own error
            return None
        offset_id = f"{_MARK}{len(names)}"
        sent = rules.properties_for(
            self._target, marks, offset_message_id=offset_id, now_ms=self._now_ms
        )
        # The append looks for the tag, and finds it at once if it is the first property.
        ordered = sorted(sent.items(), key=lambda entry: entry[0] != props.TAGS)
        encoded = {
            name.replace("%", "%%"): "%b" if value.startswith(_MARK) else value.replace("%", "%%")
            for name, value in ordered
        }
        chosen = [int(value[1:]) for _, value in ordered if value.startswith(_MARK)]
        return _Plan(
            props.encode(encoded),
            itemgetter(*chosen),  # more than one: UNIQ_KEY and ORIGIN_MESSAGE_ID are sent always
            len(names) in chosen,
            int(topic[1:]) if topic.startswith(_MARK) else topic,
        )

    def _topic(self, name: bytes | str) -> TopicConfig:
        """Return a topic that accepts messages. Raises TopicNotExist, NoPermission."""
        topic = name if isinstance(name, str) else name.decode("utf-8", "replace")
        config = self._find(topic)
        if config is None:
            raise TopicNotExist(topic)
        if not config.writable or not config.write_queue_count:
            raise NoPermission(
                f"topic {topic} does not accept messages (permission {config.permission}): give it "
                "write permission, or send to another"
            )
        self._topics[name] = config
        return config

    def _properties(self, letter: OpenedLetter) -> bytes:
        sent = rules.properties_for(
            self._target,
            letter.handled,
            offset_message_id=letter.record.offset_message_id,
            now_ms=self._now_ms,
        )
        return letter.others.encode("utf-8", "surrogatepass") + props.encode(sent)

    def _another_queue(self, config: TopicConfig) -> int:
        self._placed += 1
        return self._placed // self._in_a_row % config.write_queue_count

    def _queue(self, config: TopicConfig, letter: OpenedLetter) -> int:
        """Return the queue of the message.

        A message with a message group or lite topic goes to the queue from which it came, because
        its later messages are there. A dead letter of an earlier version lacks this queue.
        """
        handled, count = letter.handled, config.write_queue_count
        if not self._target.is_retry:
            order_key = handled.get(props.SHARDING_KEY) or handled.get(props.LITE_TOPIC)
            if order_key:
                origin = props.whole_number(handled.get(props.DLQ_ORIGIN_QUEUE_ID, ""))
                is_origin = not self._target.topic and origin is not None
                if is_origin and origin is not None and 0 <= origin < count:
                    return origin
                return queue_of_group(order_key, range(count))
            priority = props.whole_number(handled.get(props.PRIORITY, ""))
            if priority is not None:
                return max(0, min(priority, count - 1))
        return self._another_queue(config)
