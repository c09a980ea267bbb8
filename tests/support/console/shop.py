"""Processes: two brokers with topics, groups and dead letters, and a console for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from aerobee_client import (
    AdminClient,
    Message,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    TransactionResolution,
)
from aerobee_client.admin.descriptions import PolicyDescription
from aerobee_client.admin.letters import LetterJobSpec
from support.clock.polling import until_sync
from support.processes.service import ServiceProcess, named_broker, namesrv_process

PAYMENTS = 60
DECLINED = 20  # every third payment
OPEN = 3  # transactions
HELD, HOLD = 3, timedelta(hours=1)  # payments that "packing" holds
JOB = "an-old-redrive"


@dataclass
class Shop:
    namesrv: str
    brokers: dict[str, ServiceProcess]
    console: ServiceProcess

    @property
    def url(self) -> str:
        return f"http://{self.console.address}"


def decide(message: object) -> None:
    """Fail for every third payment."""
    number = json.loads(message.body)["id"]  # type: ignore[attr-defined]
    if number % 3 == 0:
        raise TimeoutError(f"the bank did not answer for payment {number}")


@contextmanager
def shop(path: Path, *options: str) -> Iterator[Shop]:
    """Start everything. A consumer of the group "billing" stays connected."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(
            namesrv_process(path, f"--set=auditLogPath={path / 'namesrv-audit.log'}")
        )
        names = ("broker-a", "broker-b")
        brokers = {
            name: stack.enter_context(
                named_broker(
                    *(path, name),
                    # broker-b has no audit log.
                    *([f"--set=auditLogPath={path / 'audit.log'}"] if name == "broker-a" else []),
                    namesrv=namesrv.address,
                )
            )
            for name in names
        }
        console = stack.enter_context(
            ServiceProcess("aerobee_console", "--port", "0", "--namesrv", namesrv.address, *options)
        )
        stack.enter_context(_filled(namesrv.address))
        yield Shop(namesrv.address, brokers, console)


@contextmanager
def _filled(namesrv: str) -> Iterator[None]:
    with AdminClient(namesrv) as admin:
        for topic in ("payments", "orders", "emails"):
            admin.create_topic(topic, queues=2)
        admin.create_group("shipping")
        admin.create_group("billing", max_attempts=1, retry_delays=[timedelta(milliseconds=100)])
        admin.create_user("ops", "a secret key", super=True)
        admin.create_user("shop", "another secret key")
        admin.create_policies("shop", [PolicyDescription("Topic:pay*", ("Pub", "Sub"))])
        admin.set_quota("User:shop", messages_in=1_000)
        with Producer("shop", namesrv=namesrv) as producer:
            for number in range(PAYMENTS):
                body = json.dumps({"id": number, "customer": "Zoë"}).encode()
                tag = "card" if number % 2 else "cash"
                producer.send(Message("payments", body, tag=tag, keys=f"pay-{number}"))
            _leave_waiting(admin, producer, namesrv)
            packing = SimpleConsumer("packing", namesrv=namesrv)
            packing.subscribe("payments")
            consumer = PushConsumer("billing", decide, namesrv=namesrv)
            consumer.subscribe("payments")
            with consumer, packing:
                until_sync(lambda: packing.receive(HELD, HOLD), "the leases")
                until_sync(lambda: dead_letters(admin) == DECLINED, "the dead letters")
                yield


def _leave_waiting(admin: AdminClient, producer: Producer, namesrv: str) -> None:
    """Leave a delayed message, two open transactions, two lite topics and an ended job."""
    admin.create_topic("reminders", queues=1, message_type="DELAY")
    admin.create_topic("invoices", queues=1, message_type="TRANSACTION")
    admin.create_topic("sessions", queues=1, message_type="LITE")
    admin.create_group("packing")
    producer.send(Message("reminders", b"pay", delay=timedelta(hours=6)))
    for name in ("chat-1", "chat-2"):
        producer.send(Message("sessions", b"hello", lite_topic=name))
    check = lambda _: TransactionResolution.UNKNOWN  # noqa: E731
    with TransactionProducer("shop-tx", check, namesrv=namesrv) as transactions:
        for number in range(OPEN):
            message = Message("invoices", b"invoice", keys=f"invoice-{number}")
            with transactions.transaction(message) as transaction:
                transaction.unknown()
    spec = LetterJobSpec(consumer_group="billing", target="origin", reason="NoSuchReason")
    for broker in ("broker-a", "broker-b"):
        admin.start_letter_job(broker, JOB, spec)


def dead_letters(admin: AdminClient) -> int:
    backlogs = admin.broker_backlogs().values()
    return sum(sum(backlog.dead_letters.values()) for backlog in backlogs)
