"""The wiring of sends and send-backs."""

from __future__ import annotations

import os
import random

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.retry.router import RetryRouter
from aerobee_broker.delivery.retry.send_back import SendBack
from aerobee_broker.delivery.send.admission import Admission
from aerobee_broker.delivery.send.batch import BatchSender
from aerobee_broker.delivery.send.broker_properties import BrokerProperties
from aerobee_broker.delivery.send.send import Sender
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.wiring.core import Core
from aerobee_broker.wiring.delay import Delay
from aerobee_wire import properties as props
from aerobee_wire.message_id import UniqueIds


class Sending:
    def __init__(
        self, core: Core, delay: Delay, transactions: Transactions, store_host: str
    ) -> None:
        environment = core.environment
        options, clock, metrics = environment.options, environment.clock, environment.metrics
        admission = Admission(core.topics, core.permission, options, environment.rng)
        properties = BrokerProperties(
            added_properties(options), unique_ids(store_host, environment.rng), clock
        )
        self.sender = Sender(
            log=core.log,
            admission=admission,
            properties=properties,
            delays=delay.router,
            retries=RetryRouter(core.topics, core.groups, metrics),
            transactions=transactions,
            metrics=metrics,
            clock=clock,
        )
        self.batch_sender = BatchSender(
            log=core.log,
            admission=admission,
            properties=properties,
            delays=delay.router,
            metrics=metrics,
            clock=clock,
        )
        self.send_back = SendBack(
            log=core.log,
            topics=core.topics,
            groups=core.groups,
            delays=delay.router,
            metrics=metrics,
            permission=core.permission,
            rng=environment.rng,
        )


def unique_ids(store_host: str, rng: random.Random) -> UniqueIds:
    """Return a generator of ids for messages without one. `store_host`: "ip:port"."""
    ip = store_host.rpartition(":")[0].strip("[]")
    return UniqueIds(ip, os.getpid(), rng.getrandbits(32))


def added_properties(options: BrokerOptions) -> dict[str, str]:
    """Return the properties that the broker adds to each message."""
    return {
        props.MESSAGE_REGION: options.region_id,
        props.TRACE_ON: "true" if options.trace_on else "false",
        props.CLUSTER: options.broker_cluster_name,
    }
