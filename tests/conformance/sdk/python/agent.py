"""Runs inside the environment of the official Python SDK and does what it is told, line by line.

A command is one JSON object on stdin: {"seq": N, "do": NAME, "id": CLIENT, …}. Its answer is one
JSON object on stdout, {"seq": N, "answer": …} or {"seq": N, "error": CLASS, "code": …, "text": …}.
What the SDK calls back becomes lines of its own: {"event": "delivered", …}, {"event": "check", …}.
Knows nothing of the tests. Version 5.0.3 has no push consumer, no recall, no priorities, and its
simple consumer no TLS; it raises where a body is corrupted. It has no lite topics either.
"""
# mypy: ignore-errors

import json
import os
import re
import sys
import threading
import time
from urllib.parse import quote

import rocketmq
from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

# On a busy machine the default of 3 s passes now and then: the SDK sends again, and the message is
# there twice.
REQUEST_TIMEOUT_S = 10

OUTPUT = threading.Lock()

# Headers of the next request of this thread: the SDK gives a message back in the thread that
# failed.
FAILURE = threading.local()


def signs_failures(client):
    """A class of clients whose requests carry the headers of FAILURE."""

    class SigningFailures(client):
        def sign(self):
            headers, FAILURE.headers = getattr(FAILURE, "headers", []), []
            return [*super().sign(), *headers]

    return SigningFailures


def fail_because(reason, description):
    FAILURE.headers = [
        ("x-aerobee-reason", quote(reason)),
        ("x-aerobee-description", quote(description)),
    ]


def say(line):
    with OUTPUT:
        print(json.dumps(line), flush=True)


def described(message):
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode("utf-8", "replace"),
        "size": len(message.body),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "group": message.message_group,
        "lite": getattr(message, "lite_topic", None),
        "priority": getattr(message, "priority", None),
        "attempt": message.delivery_attempt,
        "corrupted": getattr(message, "corrupted", None),
        "at": time.time(),
    }


def filters(subscriptions):
    kinds = {"TAG": FilterType.TAG, "SQL": FilterType.SQL}
    return {
        topic: FilterExpression(expression, kinds[kind])
        for topic, (kind, expression) in subscriptions.items()
    }


class Listener(getattr(rocketmq, "MessageListener", object)):
    """Succeeds from call `succeed_from` of a message on; at once for bodies that are not in `only`,
    when that is given."""

    def __init__(self, name, succeed_from, only, sleep_s, because=None):
        self.because = because
        self.name = name
        self.succeed_from = succeed_from
        self.only = only
        self.sleep_s = sleep_s
        self.calls = {}

    def consume(self, message):
        with OUTPUT:
            call = self.calls[message.message_id] = self.calls.get(message.message_id, 0) + 1
        say({"event": "delivered", "id": self.name, "call": call, **described(message)})
        time.sleep(self.sleep_s)
        concerned = self.only is None or message.body.decode() in self.only
        if concerned and call < self.succeed_from:
            if self.because:
                fail_because(*self.because)
            return rocketmq.ConsumeResult.FAILURE
        return rocketmq.ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    def __init__(self, name, resolution):
        self.name = name
        self.resolution = resolution

    def check(self, message):
        say({"event": "check", "id": self.name, **described(message)})
        if self.resolution == "UNKNOWN":
            return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        return TransactionResolution.Value(self.resolution)


class Agent:
    def __init__(self, endpoints, access_key="", secret_key=""):
        self.endpoints = endpoints
        self.credentials = Credentials(access_key, secret_key)
        # And it trusts what gRPC trusts.
        self.tls = {"tls_enable": True} if "SDK_TLS" in os.environ else {}
        self.clients = {}
        self.received = {}
        self.transactions = {}

    def configuration(self, namespace=""):
        return ClientConfiguration(self.endpoints, self.credentials, namespace, REQUEST_TIMEOUT_S)

    def do_producer(self, id, topics, namespace="", resolution=None):
        checker = Checker(id, resolution) if resolution else None
        self.clients[id] = Producer(
            self.configuration(namespace), tuple(topics), checker, **self.tls
        )
        self.clients[id].startup()

    def do_send(self, id, transaction=None, **fields):
        message = Message()
        message.topic = fields["topic"]
        message.body = fields["body"].encode() if "body" in fields else bytes(fields["size"])
        if fields.get("tag"):
            message.tag = fields["tag"]
        if fields.get("keys"):
            message.keys = fields["keys"]
        if fields.get("group"):
            message.message_group = fields["group"]
        if "lite" in fields:
            message.lite_topic = fields["lite"]
        if "priority" in fields:
            message.priority = fields["priority"]
        if "deliver_at" in fields:
            message.delivery_timestamp = fields["deliver_at"]
        for name, value in fields.get("properties", {}).items():
            message.add_property(name, value)
        if transaction is None:
            receipt = self.clients[id].send(message)
        else:
            self.transactions[transaction] = self.clients[id].begin_transaction()
            receipt = self.clients[id].send(message, self.transactions[transaction])
        return {
            "message_id": receipt.message_id,
            "offset": receipt.offset,
            "transaction_id": receipt.transaction_id,
            "recall_handle": getattr(receipt, "recall_handle", None),
        }

    def do_commit(self, transaction):
        self.transactions[transaction].commit()

    def do_rollback(self, transaction):
        self.transactions[transaction].rollback()

    def do_recall(self, id, topic, handle):
        return self.clients[id].recall_message(topic, handle)

    def do_simple(self, id, group, subscriptions, await_s, namespace=""):
        self.clients[id] = signs_failures(SimpleConsumer)(
            self.configuration(namespace),
            group,
            filters(subscriptions),
            await_s,
            **self.tls,
        )
        self.clients[id].startup()

    def do_receive(self, id, most, invisible_s):
        messages = self.clients[id].receive(most, invisible_s) or []
        self.received.update({message.message_id: message for message in messages})
        return [described(message) for message in messages]

    def do_ack(self, id, message_id):
        self.clients[id].ack(self.received[message_id])

    def do_change(self, id, message_id, invisible_s, because=None):
        if because:
            fail_because(*because)
        self.clients[id].change_invisible_duration(self.received[message_id], invisible_s)

    def do_push(
        self, id, group, subscriptions, *, succeed_from=1, only=None, sleep_s=0, because=None
    ):
        listener = Listener(id, succeed_from, only, sleep_s, because)
        self.clients[id] = signs_failures(rocketmq.PushConsumer)(
            self.configuration(), group, listener, filters(subscriptions), **self.tls
        )
        self.clients[id].startup()

    def do_lite(self, id, group, topic, *, succeed_from=1, only=None, sleep_s=0):
        listener = Listener(id, succeed_from, only, sleep_s)
        self.clients[id] = rocketmq.LitePushConsumer(
            self.configuration(), group, topic, listener, **self.tls
        )
        self.clients[id].startup()

    def do_lite_simple(self, id, group, topic, await_s):
        self.clients[id] = rocketmq.LiteSimpleConsumer(
            topic, self.configuration(), group, await_s, **self.tls
        )
        self.clients[id].startup()

    def do_subscribe(self, id, lite):
        for name in lite:
            self.clients[id].subscribe_lite(name)

    def do_unsubscribe(self, id, lite):
        for name in lite:
            self.clients[id].unsubscribe_lite(name)

    def do_close(self, id):
        self.clients.pop(id).shutdown()


def main():
    agent = Agent(*sys.argv[1:])
    say({"event": "ready"})
    for line in sys.stdin:
        command = json.loads(line)
        seq, name = command.pop("seq"), command.pop("do")
        try:
            say({"seq": seq, "answer": getattr(agent, "do_" + name)(**command)})
        except Exception as error:
            code = getattr(error, "code", None)
            reported = re.match(r"response code:(\d+),", str(error))  # by 5.0.3 in the text only
            code = int(reported[1]) if reported else code
            code = code if isinstance(code, int) else None  # gRPC's errors have a method
            say({"seq": seq, "error": type(error).__name__, "code": code, "text": str(error)})


main()
