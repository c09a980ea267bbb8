"""Read and resend messages in log parts that replicas have cut off: part of AsyncAdminClient."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import StrEnum

from aerobee.broker.v1 import message_pb2, replica_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.replicas import ReplicaAdmin
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import properties as names
from aerobee_wire import rpcs, topics
from aerobee_wire.compression import compression_bits
from aerobee_wire.record import BLANK, MAGIC_BLANK, CorruptRecord, Record, decode
from aerobee_wire.route import WRITE
from aerobee_wire.status import Code, MqError

QUERIES_AT_ONCE = 32
SEND_MESSAGES, SEND_BYTES = 256, 1 << 20  # limits of one request, which stores all or none
SEND_S = 30.0  # a replica may join, or be elected, in the meantime
_PRODUCER_GROUP = "aerobee-diverged"


class Kind(StrEnum):
    """The kind of a record that was cut off.

    A HALF_MESSAGE is not sent again, because only its producer knows whether to commit its
    transaction. An INTERNAL record describes other records; the remaining log has its own INTERNAL
    records.
    """

    MESSAGE = "message"
    DELAYED = "delayed"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    HALF_MESSAGE = "half message"
    INTERNAL = "internal"


_WAITING = frozenset({topics.SCHEDULE_TOPIC, topics.TIMER_TOPIC})

# Properties that belong to the stay of a message in the log that was cut.
_DROPPED = frozenset(
    {
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.WAIT,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.POP_CHECK_POINT,
        names.FIRST_POP_TIME,
        names.TRANSACTION_PREPARED,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET,
        names.TRANSACTION_CHECK_TIMES,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_OUT_MS,
    }
)


def kind_of(record: Record) -> Kind:
    topic, properties = record.topic, record.properties
    if topic == topics.HALF_TOPIC:
        return Kind.HALF_MESSAGE
    if topic in _WAITING:
        if names.TIMER_DELETE_UNIQUE_KEY in properties or names.REAL_TOPIC not in properties:
            return Kind.INTERNAL  # a recall, or a record that does not wait
        real = properties[names.REAL_TOPIC]
        return Kind.RETRY if topics.is_retry(real) else Kind.DELAYED
    if topics.is_system(topic):
        return Kind.INTERNAL
    if topics.is_retry(topic):
        return Kind.RETRY
    return Kind.DEAD_LETTER if topics.is_dead_letter(topic) else Kind.MESSAGE


def topic_of(record: Record) -> str:
    """Return the topic of a message, or the destination topic of a delayed message."""
    return record.properties.get(names.REAL_TOPIC) or record.topic


def queue_of(record: Record) -> int:
    """Return the queue id of a message in the topic that `topic_of` returns."""
    real = names.whole_number(record.properties.get(names.REAL_QUEUE_ID, ""))
    waits = names.REAL_TOPIC in record.properties
    return real if waits and real is not None else record.queue_id


def message_id_of(record: Record) -> str:
    return record.properties.get(names.UNIQUE_KEY) or record.offset_message_id


def properties_for(record: Record, resent_from: str) -> dict[str, str]:
    """Return the properties with which a message is sent again.

    They are the properties of the message, its message id, and the position of the record. A
    message that waits until a time keeps that time. A message that waits for a delay level waits
    again from the start. A message that was already delivered after its delay does not wait again.
    """
    given = record.properties
    kept = {name: value for name, value in given.items() if name not in _DROPPED}
    if record.topic == topics.TIMER_TOPIC and names.TIMER_OUT_MS in given:
        kept[names.TIMER_DELIVER_MS] = given[names.TIMER_OUT_MS]
    elif record.topic not in _WAITING:
        kept.pop(names.TIMER_DELIVER_MS, None)
    if record.topic != topics.SCHEDULE_TOPIC:
        kept.pop(names.DELAY, None)
    # First, because the broker's fast path looks for it there.
    unique = {names.UNIQUE_KEY: message_id_of(record)}
    return unique | kept | unique | {names.RESENT_FROM: resent_from}


@checked_class
class DivergedAdmin(ReplicaAdmin):
    async def list_diverged(
        self, broker_name: str, *, silent: list[MqError] | None = None
    ) -> list[d.DivergedFile]:
        """Return the log parts that the replicas of a broker have cut off and kept, by replica id.

        Args:
            broker_name: The name of the broker.
            silent: Collects the errors of replicas that do not answer: see `replicas`.

        Returns:
            The parts.

        Raises:
            MqError: BROKER_NOT_EXIST if no such broker is registered.
        """
        replicas = await self.replicas(broker_name, silent=silent)
        request = replica_pb2.ListDivergedRequest()
        asked = [
            self._brokers.ask(broker_name, each.address, rpcs.LIST_DIVERGED, request)
            for each in replicas
        ]
        answers = await asyncio.gather(*asked)
        return [
            d.DivergedFile.of((broker_name, replica.replica_id, replica.address), file)
            for replica, answer in zip(replicas, answers, strict=True)
            for file in answer.files
        ]

    async def read_diverged(self, file: d.DivergedFile, position: int = 0) -> d.DivergedPage:
        """Return messages of a part that was cut off, and whether a broker has each of them.

        Args:
            file: The part.
            position: 0, or the end of the previous page.

        Returns:
            A page of messages.

        Raises:
            MqError: QUERY_NOT_FOUND or MESSAGE_CORRUPTED.
        """
        answer = await self._brokers.ask(
            file.broker_name,
            file.address,
            rpcs.READ_DIVERGED,
            replica_pb2.ReadDivergedRequest(name=file.name, position=position),
        )
        records, corrupted = _records(answer.data)
        kinds = [(kind_of(record), record) for record in records]
        messages = [(kind, record) for kind, record in kinds if kind is not Kind.INTERNAL]
        stored = await self._stored([record for _, record in messages])
        return d.DivergedPage(
            next_position=position + len(answer.data),
            internal_count=len(kinds) - len(messages),
            corrupted_count=corrupted,
            messages=[
                _described(kind, record, is_stored)
                for (kind, record), is_stored in zip(messages, stored, strict=True)
            ],
        )

    async def resend_diverged(
        self,
        file: d.DivergedFile,
        messages: Sequence[d.DivergedMessage],
        *,
        dry_run: bool = False,
    ) -> int:
        """Send messages of a page again, each to its topic and queue, under its message id.

        The messages go to the master of the broker whose replica cut them off.

        Args:
            file: The part.
            messages: The messages to send.
            dry_run: Only check that the broker accepts messages of their topics.

        Returns:
            The number of stored messages, or of those that would be sent.

        Raises:
            MqError: The first failure. Messages before it are stored.
        """
        masters = await self._brokers.masters()
        if file.broker_name not in masters:
            raise MqError(
                Code.BROKER_NOT_EXIST,
                f"broker {file.broker_name} has no master at the moment: wait for an election, or "
                "promote a replica",
                retryable=True,
            )
        sent = 0
        for batch in batches(messages):
            if dry_run:
                await self._check_accepts(file.broker_name, batch[0].topic)
                sent += len(batch)
                continue
            request = message_pb2.SendRequest(
                producer_group=_PRODUCER_GROUP, messages=[_message(file, each) for each in batch]
            )
            address = masters[file.broker_name]
            await self._brokers.ask(file.broker_name, address, rpcs.SEND, request, timeout_s=SEND_S)
            sent += len(batch)
        return sent

    async def _check_accepts(self, broker_name: str, topic: str) -> None:
        """Raise the error with which a broker would refuse a message of `topic`.

        A missing topic is created by its first message if the broker has the topic TBW102.
        """
        for name in (topic, topics.AUTO_CREATE_TOPIC):
            try:
                route = await self._instance.routes.refresh(name)
            except MqError as error:
                if error.code is not Code.TOPIC_NOT_EXIST:
                    raise
                continue
            for queues in route.queues:
                if queues.broker_name == broker_name:
                    if queues.permission & WRITE:
                        return
                    reason = f"broker {broker_name} does not accept messages of {topic} now"
                    raise MqError(Code.NO_PERMISSION, reason)
        raise MqError(
            Code.TOPIC_NOT_EXIST,
            f"broker {broker_name} has no topic {topic}: create it (aerobee topic create {topic})",
        )

    async def _stored(self, records: Sequence[Record]) -> list[bool]:
        """Return for each record whether a broker has a message with the same message id.

        All brokers are asked, because the producer may have sent the message again to any of them.
        """
        masters = await self._brokers.masters()
        slots = asyncio.Semaphore(QUERIES_AT_ONCE)

        async def found(record: Record, topic: str) -> bool:
            request = message_pb2.QueryMessagesRequest(
                topic=topic, key=message_id_of(record), unique=True
            )
            async with slots:
                answers = await self._brokers.ask_each(masters, rpcs.QUERY_MESSAGES, request)
            return any(
                message.reconsume_times >= record.reconsume_times
                for answer in answers.values()
                for message in answer.messages
            )

        async def is_stored(record: Record) -> bool:
            # A delayed message is in another topic while it waits.
            places = sorted({topic_of(record), record.topic})
            return any([await found(record, topic) for topic in places])

        return list(await asyncio.gather(*map(is_stored, records)))


def _records(data: bytes) -> tuple[list[Record], int]:
    """Decode records. Return them, and the number of records that fail their check."""
    found: list[Record] = []
    at = corrupted = 0
    while at < len(data):
        size, magic = BLANK.unpack_from(data, at)
        if magic != MAGIC_BLANK:
            try:
                found.append(decode(data, at))
            except CorruptRecord:
                corrupted += 1
        at += size
    return found, corrupted


def _described(kind: Kind, record: Record, is_stored: bool) -> d.DivergedMessage:
    properties = record.properties
    return d.DivergedMessage(
        topic=topic_of(record),
        kind=kind.value,
        message_id=message_id_of(record),
        keys=properties.get(names.KEYS, ""),
        tag=properties.get(names.TAGS, ""),
        body_size=len(record.body),
        queue_id=queue_of(record),
        reconsume_times=record.reconsume_times,
        physical_offset=record.physical_offset,
        store_timestamp_ms=record.store_timestamp_ms,
        stored=is_stored,
        record=record,
    )


def _message(file: d.DivergedFile, given: d.DivergedMessage) -> message_pb2.Message:
    record = given.record
    resent_from = f"{file.broker_name}/{file.replica_id}/{file.name}/{given.physical_offset}"
    return message_pb2.Message(
        topic=given.topic,
        queue_id=given.queue_id,
        body=record.body,
        encoded_properties=names.encode(properties_for(record, resent_from)),
        flag=record.flag,
        sys_flag=compression_bits(record.sys_flag),
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        reconsume_times=given.reconsume_times,
    )


def batches(messages: Iterable[d.DivergedMessage]) -> Iterable[list[d.DivergedMessage]]:
    """Split messages into batches of one topic each, in order.

    A refused topic therefore does not stop the messages of other topics in the same request.
    """
    batch: list[d.DivergedMessage] = []
    size = 0
    for message in messages:
        full = len(batch) == SEND_MESSAGES or size + message.body_size > SEND_BYTES
        if batch and (full or message.topic != batch[0].topic):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += message.body_size
    if batch:
        yield batch
