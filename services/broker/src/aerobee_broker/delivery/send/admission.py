"""Checks whether the broker accepts a send. Each error contains a hint for the user.

There are two differences from RocketMQ. A topic without write permission is hidden from routes, and
also rejects sends. A send may use 31,743 of the 32,767 bytes of properties, so that a retry can add
its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.retry import policy
from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.errors import (
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    QueueNotExist,
    TooManyNames,
)
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.broker_permission import BrokerPermission
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import TRANSACTION_MASK, TRANSACTION_PREPARED

MAX_PROPERTY_BYTES = props.MAX_BYTES - policy.RESERVED_PROPERTY_BYTES
# The flags that a sender may set: compressed body, multiple tags, IPv6 hosts, and the compression
# type. The store sets the flags of IPv6 hosts itself. All other bits are reserved for the broker.
SENDER_SYS_FLAGS = 0x1 | 0x2 | 0x30 | 0x700


class Admission:
    """Decides which messages this broker accepts, by topic, queue and size."""

    def __init__(
        self,
        topics: TopicRegistry,
        permission: BrokerPermission,
        options: BrokerOptions,
        rng: random.Random,
    ) -> None:
        self._topics = topics
        self._permission = permission
        self._rng = rng
        self.use(options)

    def use(self, options: BrokerOptions) -> None:
        """Use the limits of `options`."""
        self._takes_transactions = not options.reject_transaction_message
        self.max_body_size = options.max_message_size
        self._max_transactions = options.max_open_transactions

    async def topic(self, topic: str, queue_count: int, creator: str = "") -> TopicConfig:
        """Return the topic of a send.

        If the topic does not exist and may be created, creates it with `queue_count` queues for
        `creator` (`Creations.check`). Raises NoPermission, TopicNotExist, InvalidParameter,
        TooManyNames, TooManyCreations.
        """
        if topic in names.SEND_REFUSED_TOPICS:
            raise NoPermission(f"{topic} is a system topic: send to a topic of your own", "topic")
        self._permission.check_send()
        config = self._topics.ready(topic)
        if config is None:
            config = await self._topics.for_send(topic, queue_count, creator)
        if not config.writable:
            raise NoPermission(
                f"topic {topic} does not accept messages (permission {config.permission}): "
                "give it write permission, or send to another",
                "permission",
            )
        return config

    def check_present(self, topics: Iterable[str]) -> None:
        """Check that topics were not deleted since `topic` returned them, during another await.

        A message would bring its topic back at the next start. Raises TopicNotExist.
        """
        for topic in topics:
            self._topics.get(topic)

    def queue(self, config: TopicConfig, queue_id: int | None) -> int:
        """Return the queue id of a send.

        If `queue_id` is None or negative, returns the id of a random writable queue. Raises
        QueueNotExist.
        """
        if queue_id is None or queue_id < 0:
            return self._rng.randrange(max(1, config.write_queue_count))
        if queue_id >= config.queue_count:
            raise QueueNotExist(config.topic, queue_id, config.queue_count)
        return queue_id

    def check_transactions(self, open_count: int) -> None:
        """Check that one more transaction may begin while `open_count` have not ended.

        Raises NoPermission if rejectTransactionMessage is on, and TooManyNames.
        """
        if open_count >= self._max_transactions:
            raise TooManyNames(
                "open transactions",
                self._max_transactions,
                "maxOpenTransactions",
                "end some ('aerobee transaction list')",
            )
        if not self._takes_transactions:
            raise NoPermission(
                "this broker does not accept transactional messages (rejectTransactionMessage): "
                "send to another",
                "rejectTransactionMessage",
            )


def metric_type(config: TopicConfig) -> str:
    """Return the message type, for metrics, of a message without delay and transaction."""
    return "fifo" if config.message_type == "FIFO" else "normal"


def check_body(size: int, limit: int) -> None:
    if size == 0:
        raise MessageIllegal("the body is empty: give it at least one byte", "body")
    if size > limit:
        raise MessageIllegal(
            f"the body has {size} bytes: at most {limit} (maxMessageSize); split or compress it",
            "maxMessageSize",
        )


def check_sys_flag(sys_flag: int, properties: Mapping[str, str]) -> None:
    prepared = TRANSACTION_PREPARED if half_messages.is_transactional(properties) else 0
    if sys_flag & TRANSACTION_MASK & ~prepared:
        raise InvalidParameter(
            f"sys_flag {sys_flag:#x} says transaction, and the property TRAN_MSG is not true: "
            "give both or neither",
            "TRAN_MSG",
        )
    if sys_flag & ~SENDER_SYS_FLAGS & ~prepared:
        raise InvalidParameter(
            f"sys_flag {sys_flag:#x} has bits that are not a sender's: use 1 for a compressed body",
            "sys_flag",
        )


def check_properties(size: int) -> None:
    if size > MAX_PROPERTY_BYTES:
        problem = f"the properties have {size} bytes: at most {MAX_PROPERTY_BYTES}"
        raise MessageIllegal(f"{problem}; move data to the body", "properties")
