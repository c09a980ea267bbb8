"""Each argument of each public function × values of wrong types: INVALID_PARAMETER, with its name.

The text of the error names the argument, the accepted type and an example.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aerobee_client as client
from aerobee_client.admin.descriptions import DivergedFile
from aerobee_client.admin.letters import LetterJobSpec
from aerobee_client.admin.waiting import HeldLease, OpenTransaction
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.message.message import MessageSettings
from aerobee_client.options.consumer import ConsumerOptions, PullConsumerOptions
from aerobee_client.options.lease_consumer import LiteConsumerOptions, SimpleConsumerOptions
from aerobee_client.options.producer import ProducerOptions
from aerobee_client.runtime import kinds
from aerobee_client.runtime.facade import Facade
from aerobee_client.testing import AsyncRocketMq
from aerobee_wire.status import Code, MqError
from support.codes import raises_code

NAMESRV = "127.0.0.1:1"
MAKERS: dict[str, Callable[[], Any]] = {
    **{
        name: partial(getattr(client, name), namesrv=NAMESRV)
        for name in (
            "AdminClient",
            "AsyncAdminClient",
            "AsyncProducer",
            "AsyncPullConsumer",
            "Producer",
            "PullConsumer",
        )
    },
    **{
        name: partial(getattr(client, name), "g", namesrv=NAMESRV)
        for name in ("AsyncSimpleConsumer", "SimpleConsumer")
    },
    **{
        name: partial(getattr(client, name), "g", print, namesrv=NAMESRV)
        for name in (
            "AsyncPushConsumer",
            "AsyncTransactionProducer",
            "PushConsumer",
            "TransactionProducer",
        )
    },
    **{
        name: partial(getattr(client, name), "g", "lite", namesrv=NAMESRV)
        for name in ("AsyncLiteSimpleConsumer", "LiteSimpleConsumer")
    },
    "AddedProperty": partial(client.AddedProperty, "name", "value"),
    "ExponentialRetryPolicy": client.ExponentialRetryPolicy,
    "Message": partial(client.Message, "orders", b"text"),
    "OffsetOption": lambda: client.OffsetOption.MIN_OFFSET,
    "ReconsumeLater": client.ReconsumeLater,
    "SelectByHash": client.SelectByHash,
    "SelectMachineRoom": partial(client.SelectMachineRoom, ["room"]),
    "SelectRandom": client.SelectRandom,
    "Sql": partial(client.Sql, "a = 1"),
    "Credentials": partial(client.Credentials, "billing", "s3cret"),
    "Tls": partial(client.Tls, "ca.crt"),
}
# Results and errors, which programs do not create; enumerations; and what programs implement.
NOT_CALLED = {
    *("AlreadyExists", "BrokerUnreachable", "ClientClosed", "LeaseFailures", "MqError"),
    *("NamesrvUnreachable", "PartialSend", "RequestTimeout", "DeadLetter"),
    *("Code", "ConsumeFromWhere", "ConsumeOrder", "ConsumeResult", "MessageModel"),
    *("TransactionResolution", "ConsumeFailure", "ConsumerStatistics", "DroppedReplies"),
    *("Failure", "LeasedMessage", "ProducerStatistics", "ReceivedMessage", "Renewal", "Reply"),
    *("SendResult", "TransactionSendResult", "Interceptor", "Selector"),
    "MessageQueue",  # a tuple, whose fields are checked where it is an argument
}
# Functions that the client calls, on objects that only the client creates.
INTERNAL = {
    *("with_system_properties", "encoded_properties", "copied_to", "take_back", "consumes_on"),
    *("delay_ms", "delays_ms", "files"),
}
# The types that an alias of the annotations stands for.
ALIASES = {
    "AsyncExecute": "Callable",
    "BatchListener": "Callable",
    "Callback": "Callable",
    "Check": "Callable",
    "Execute": "Callable",
    "Listener": "Callable",
    "MessageOrHandle": "LeasedMessage | str",
    "OnError": "Callable",
    "OnEvicted": "Callable",
    "OnQueues": "Callable",
    "Strategy": "Callable",
    "Literal": "str",
}
WRONG: dict[str, Any] = {
    "object": object(),
    "float": 1.5,
    "int": 5,
    "bool": True,
    "str": "text",
    "bytes": b"bytes",
    "None": None,
}
# Valid values that an example describes in words, and names that examples use.
EXAMPLES: dict[str, Any] = {
    "one that receive() returned": object.__new__(LeasedMessage),
    "one that list_leases() returned": object.__new__(HeldLease),
    "one that list_transactions() returned": object.__new__(OpenTransaction),
    "one that a consumer received": object.__new__(client.ReceivedMessage),
    "": object.__new__(DivergedFile),
}
NAMES = {**{name: getattr(client, name) for name in client.__all__}, "UTC": UTC}
NAMES["LetterJobSpec"] = LetterJobSpec
NAMES |= {"datetime": datetime, "timedelta": timedelta, "random": random, "Path": Path}


def wrong_kinds(annotation: str) -> list[str]:
    """The names of WRONG that an annotation does not accept."""
    text = annotation
    for alias, meaning in ALIASES.items():
        text = re.sub(rf"\b{alias}\b", meaning, text)
    text = re.sub(r"\[.*\]", "", text)  # of a sequence or mapping, no element is accepted
    accepted = {each.strip() for each in text.split("|")}
    if accepted & {"object", "Any"}:
        return []
    return [name for name in WRONG if name not in accepted]


def function_of(name: str, method: str) -> Any:
    member = inspect.getattr_static(getattr(client, name), method)
    return inspect.unwrap(getattr(member, "__func__", member))


def arguments_of(function: Any) -> list[inspect.Parameter]:
    """The parameters of a method without the object, and without options."""
    return [
        parameter
        for parameter in list(inspect.signature(function).parameters.values())[1:]
        if parameter.kind is not parameter.VAR_KEYWORD
    ]


def calls() -> Iterator[tuple[str, str]]:
    """The public functions: the name of the class, and of a method or `__init__`."""
    for name in MAKERS:
        for method in dir(getattr(client, name)):
            public = method == "__init__" or not method.startswith("_")
            if public and method not in INTERNAL and inspect.isfunction(function_of(name, method)):
                yield name, method


CASES = [
    (name, method, argument.name, wrong)
    for name, method in calls()
    for argument in arguments_of(function_of(name, method))
    for wrong in wrong_kinds(str(argument.annotation))
]
OPTIONS = [
    (name, option.name, wrong)
    for name, options in (
        ("Producer", ProducerOptions),
        ("PushConsumer", ConsumerOptions),
        ("PullConsumer", PullConsumerOptions),
        ("SimpleConsumer", SimpleConsumerOptions),
        ("LiteSimpleConsumer", LiteConsumerOptions),
        ("TransactionProducer", ProducerOptions),
    )
    for option in fields(options)
    for wrong in wrong_kinds(str(option.type))
] + [
    ("Message", option, wrong)
    for option, hint in MessageSettings.__annotations__.items()
    for wrong in wrong_kinds(hint.__forward_arg__)
]


def example_of(annotation: str, function: Any, name: str) -> Any:
    """A value that the function accepts: the example of its error texts."""
    text = kinds.kind_of(kinds.annotations_of(function)[name]).example
    return EXAMPLES[text] if text in EXAMPLES else eval(text, NAMES)


async def result_of(call: Callable[[], Any]) -> None:
    """Call and wait for the result, whatever the function returns."""
    found = call()
    if isinstance(found, Future):
        found.result(0)
    elif inspect.isawaitable(found):
        await found
    elif isinstance(found, AbstractContextManager):
        found.__enter__()


def test_every_public_class_is_here() -> None:
    assert set(MAKERS) | NOT_CALLED == set(client.__all__)
    assert len(CASES) > 1_000


@pytest.mark.parametrize("name", MAKERS)
def test_a_value_of_a_wrong_type_is_refused(name: str) -> None:
    made = MAKERS[name]()
    if isinstance(made, Facade):
        made._loop.start()
    try:
        for _, method, argument, wrong in [case for case in CASES if case[0] == name]:
            asyncio.run(check_case(made, method, argument, wrong))
    finally:
        if isinstance(made, Facade):
            made._loop.stop()


async def check_case(made: Any, method: str, argument: str, wrong: str) -> None:
    function = function_of(type(made).__name__, method)
    given, named = [], {}
    for each in arguments_of(function):
        if each.name == argument:
            if each.kind is each.VAR_POSITIONAL:
                given.append(WRONG[wrong])
            else:
                named[each.name] = WRONG[wrong]
        elif each.default is each.empty and each.kind is not each.VAR_POSITIONAL:
            named[each.name] = example_of(str(each.annotation), function, each.name)
    if given:  # the arguments before *queues are positional
        given, named = [*named.values(), *given], {}
    target = type(made) if method == "__init__" else getattr(made, method)
    case = f"{method}({argument}={WRONG[wrong]!r})"
    try:
        await result_of(lambda: target(*given, **named))
    except MqError as error:
        check_error(error, case, argument)
    else:
        raise AssertionError(f"{case} was accepted")


def check_error(error: MqError, case: str, name: str) -> None:
    assert (error.code, error.about) == (Code.INVALID_PARAMETER, name), case
    assert error.message.startswith(f"{name} is "), case
    assert ": give " in error.message, case
    if name not in ("transport", "clock", "file"):
        assert ", such as " in error.message, case


@pytest.mark.parametrize(("name", "option", "wrong"), OPTIONS)
def test_an_option_of_a_wrong_type_is_refused(name: str, option: str, wrong: str) -> None:
    with pytest.raises(MqError) as caught:
        MAKERS[name](**{option: WRONG[wrong]})
    check_error(caught.value, option, option)


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ({"keys": ["ok", 5]}, "keys"),
        ({"keys": {"a": "b"}}, "keys"),
        ({"properties": {"a": 5}}, "properties"),
        ({"properties": {5: "a"}}, "properties"),
        ({"properties": [("a", "b")]}, "properties"),
    ],
)
def test_an_element_of_a_wrong_type_is_refused(arguments: dict[str, Any], about: str) -> None:
    with raises_code(Code.INVALID_PARAMETER, about):
        client.Message("t", b"x", **arguments)


async def test_an_element_of_a_wrong_type_names_its_argument() -> None:
    consumer = client.AsyncPullConsumer(namesrv=NAMESRV)
    queue = client.MessageQueue("t", "b", "0")  # type: ignore[arg-type]
    wrong: Any
    for wrong in ([queue], [("t", "b", 0)], {"t": 0}, iter([])):
        with raises_code(Code.INVALID_PARAMETER, "queues"):
            consumer.assign(wrong)
    producer = client.AsyncProducer(namesrv=NAMESRV)
    with raises_code(Code.INVALID_PARAMETER, "messages"):
        await producer.send_batch([client.Message("t", b"x"), "text"])  # type: ignore[list-item]
    with raises_code(Code.INVALID_PARAMETER, "interceptors"):
        client.Producer(interceptors=[object()])  # type: ignore[list-item]


def test_types_that_are_equivalent_are_accepted() -> None:
    """Subclasses, integers of other packages, and any collection in place of a list."""

    class Topic(StrEnum):
        ORDERS = "orders"

    class Number:
        def __index__(self) -> int:
            return 3

    keys: Any = {"a"}
    assert client.Message(Topic.ORDERS, b"x", keys=keys, tag=Topic.ORDERS).keys == ("a",)
    assert kinds.kind_of(int).accepts(Number())


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(MqError) as caught:
        client.Message("t", "x" * 1_000_000)  # type: ignore[arg-type]
    assert len(caught.value.message) < 200


async def test_the_cluster_of_a_test_refuses_a_number_as_a_duration() -> None:
    cluster = AsyncRocketMq(NAMESRV)
    with raises_code(Code.INVALID_PARAMETER) as raised:
        await cluster.wait_consumed("g", timeout=5)  # type: ignore[arg-type]
    assert str(raised.value).startswith("timeout is 5 (int): give a timedelta")
    with raises_code(Code.INVALID_PARAMETER):
        await cluster.advance(hours=1, settle_timeout=5)  # type: ignore[arg-type]
