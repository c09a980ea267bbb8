"""Run a task of a write in a Python worker of Spark: encode Arrow batches and send the messages.

Writes of batches and of streams both use this module. Import it only in a task, because it imports
the client. Each task has its own connection, and is a producer of a group that is
named after its job.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pyarrow as pa

from aerobee_client import AdminClient
from aerobee_client.errors import Code
from aerobee_client.options.producer import ProducerOptions
from aerobee_client.sending.columns import ColumnSender
from aerobee_spark.errors import MqError, WriteError
from aerobee_spark.reading.planning import connect
from aerobee_spark.writing import dead_letters
from aerobee_spark.writing.encoding import MessageIds, Messages, encode
from aerobee_spark.writing.message_columns import FrameColumns
from aerobee_spark.writing.options import WriteOptions
from aerobee_spark.writing.sending import Pace, TaskSends
from aerobee_wire.backoff import Backoff
from aerobee_wire.topics import group_of

log = logging.getLogger(__name__)

GROUP_PREFIX = "spark_sink_"


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a write.

    The message ids depend only on `job` and `partition`, so that a repeated task uses the same ids.
    """

    options: WriteOptions
    columns: FrameColumns
    job: str
    partition: int

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Send all rows of the batches, and return the number of messages.

        Raise WriteError if a message cannot be sent.
        """
        group = producer_group(self.job)
        with ExitStack() as open_parts:
            options = ProducerOptions(
                send_timeout=timedelta(milliseconds=self.options.send_timeout_ms),
                **self.options.access.settings(),
            )
            sender = open_parts.enter_context(
                ColumnSender(group, namesrv=self.options.name_server, options=options)
            )
            topics = Topics(self.options, sender)
            pace = None
            if self.options.max_per_second is not None:
                admin = open_parts.enter_context(
                    connect(self.options.name_server, self.options.access)
                )
                sharers = partial(_senders, admin, group)
                pace = Pace(self.options.max_per_second, sharers)
            sends = TaskSends(sender, topics.ready, pace)
            try:
                self._send(batches, sends)
            except MqError as error:
                sends.give_up()
                raise WriteError(error, self.partition, sends.sent, sends.unknown) from None
            return sends.sent

    def _send(self, batches: Iterable[pa.RecordBatch], sends: TaskSends) -> None:
        ids, row = MessageIds(self.job, self.partition), 0
        for batch in batches:
            if not batch.num_rows:
                continue
            sends.put(self._messages(batch, ids, row))
            row += batch.num_rows
        sends.finish()

    def _messages(self, batch: pa.RecordBatch, ids: MessageIds, first_row: int) -> Messages:
        now_ms, target = time.time_ns() // 1_000_000, self.options.redrive
        if target is not None:
            rows = (batch, self.columns, target)
            return dead_letters.encode(*rows, first_row=first_row, now_ms=now_ms)
        return encode(
            batch,
            self.columns,
            ids.of(first_row, batch.num_rows),
            first_row=first_row,
            topic=self.options.topic,
            max_message_size=self.options.max_message_size,
            now_ms=now_ms,
        )


@dataclass(frozen=True, slots=True)
class Topics:
    """Checks that topics accept messages before a task sends to them, and creates topics."""

    options: WriteOptions
    sender: ColumnSender
    sleep: Callable[[float], None] = time.sleep

    def ready(self, topic: str) -> None:
        """Wait until the topic accepts messages, or create it if the option createTopic is set.

        Wait up to sendTimeoutMs if brokers of the topic are unavailable or no broker is registered,
        because they may be restarting. Raise MqError with the code TOPIC_NOT_EXIST if the topic is
        still missing and may not be created.
        """
        deadline_s = time.monotonic() + self.options.send_timeout_ms / 1000
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                self.sender.queues(topic)
            except MqError as error:
                if error.code is not Code.TOPIC_NOT_EXIST:
                    raise
                refusal = error
                may_come = error.retryable or not self._has_brokers()
                if not may_come or time.monotonic() >= deadline_s:
                    break
            else:
                return
            self.sleep(backoff.next_s())
        # Do not create retry and dead-letter topics, because brokers create them.
        if not self.options.create_topic or group_of(topic) is not None:
            raise refusal
        self._create(topic)
        self.sender.queues(topic, fresh=True)

    def _has_brokers(self) -> bool:
        with connect(self.options.name_server, self.options.access) as admin:
            return bool(admin.cluster().brokers)

    def _create(self, topic: str) -> None:
        with connect(self.options.name_server, self.options.access) as admin:
            try:
                admin.create_topic(topic)
            except MqError as error:
                # Another task may have created it first, or a user with other settings.
                if error.code is not Code.TOPIC_EXIST_ALREADY:
                    raise


def _senders(admin: AdminClient, group: str) -> int | None:
    """Return the number of producers in a producer group, or None if no broker answers."""
    try:
        clients = admin.list_clients(group, silent=[])
    except MqError as error:
        log.info("cannot count the tasks of this job: %s", error)
        return None
    return sum(group in client.producer_groups for client in clients)


def producer_group(job: str) -> str:
    """Return the name of the producer group to which all tasks of a job belong."""
    return GROUP_PREFIX + hashlib.blake2b(job.encode(), digest_size=8).hexdigest()
