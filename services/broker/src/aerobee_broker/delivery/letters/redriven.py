"""Convert dead letters to the messages that a redrive stores on this broker."""

from __future__ import annotations

from collections.abc import Callable

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

_MAX_PROPERTIES = props.MAX_BYTES - CRC_TAIL_BYTES


class RedrivenMessages:
    """Makes the messages of one redrive. `find` returns a topic of this broker, or None."""

    def __init__(
        self, find: Callable[[str], TopicConfig | None], consumer_group: str, target: Target
    ) -> None:
        self._find = find
        self._consumer_group = consumer_group
        self._target = target
        self._next_queue = 0

    def message(self, letter: OpenedLetter, now_ms: int) -> NewMessage:
        """Return the message for a dead letter.

        Raises MqError with the code MESSAGE_ILLEGAL, TOPIC_NOT_EXIST or NO_PERMISSION if it cannot
        be sent.
        """
        record, handled = letter.record, letter.handled
        topic = rules.topic_for(self._target, self._consumer_group, handled)
        config = self._find(topic)
        if config is None:
            raise TopicNotExist(topic)
        if not config.writable or not config.write_queue_count:
            raise NoPermission(
                f"topic {topic} does not accept messages (permission {config.permission}): give it "
                "write permission, or send to another"
            )
        if not record.body:
            raise MessageIllegal("the body is empty", "body")
        sent = rules.properties_for(
            self._target, handled, offset_message_id=record.offset_message_id, now_ms=now_ms
        )
        properties = letter.others.encode("utf-8", "surrogatepass") + props.encode(sent)
        if len(properties) > _MAX_PROPERTIES:
            raise MessageIllegal(
                f"the properties would have {len(properties)} bytes: at most {_MAX_PROPERTIES}",
                "properties",
            )
        return NewMessage(
            topic=topic,
            queue_id=self._queue(config, letter),
            body=record.body,
            properties=properties,
            flag=record.flag,
            sys_flag=compression_bits(record.sys_flag),
            born_timestamp_ms=now_ms,
            born_host=record.born_host_packed,
        )

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
        self._next_queue = (self._next_queue + 1) % count
        return self._next_queue
