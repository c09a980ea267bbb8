"""Check the names of arguments, and their kinds against the annotations of a public function.

A kind is a set of values that an annotation accepts, such as a whole number or a sequence of
strings. The annotations are read at the first call. This module knows no client.
"""

from __future__ import annotations

import inspect
import random
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from functools import wraps
from os import PathLike
from reprlib import Repr
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Protocol, SupportsIndex, TypeVar, Union

from aerobee_wire.status import MqError, invalid_parameter

T = TypeVar("T")
_F = Callable[..., Any]

_MARK = "_checks_itself"
# A value is shown in up to 60 characters. It may be a body of megabytes.
_SHOWN = Repr()
_SHOWN.maxother = _SHOWN.maxstring = 60

# Examples of classes of this package, by name, because this module does not import them.
_EXAMPLES = {
    "ConsumeOrder": "ConsumeOrder.CONCURRENT",
    "Credentials": 'Credentials("billing", secret_key_file="billing.secret")',
    "ExponentialRetryPolicy": "ExponentialRetryPolicy()",
    "HeldLease": "one that list_leases() returned",
    "Interceptor": "Interceptor()",
    "LeasedMessage": "one that receive() returned",
    "LetterJobSpec": 'LetterJobSpec(consumer_group="billing")',
    "LiteTopicKind": "LiteTopicKind.PARENT",
    "Message": 'Message("orders", b"text")',
    "MessageQueue": 'MessageQueue("orders", "broker-a", 0)',
    "OpenTransaction": "one that list_transactions() returned",
    "OffsetOption": "OffsetOption.MIN_OFFSET",
    "ReceivedMessage": "one that a consumer received",
    "Selector": "SelectRandom()",
    "Sql": 'Sql("size > 5")',
    "Tls": 'Tls("ca.crt")',
}


class Kind(NamedTuple):
    """The values that an annotation accepts. `text` and `example` describe them in errors."""

    accepts: Callable[[Any], bool]
    text: str
    example: str = ""
    # Types whose values need no further check.
    exact: frozenset[type] = frozenset()


def check_kind(name: str, value: object, annotation: object) -> None:
    """Check one value against an annotation.

    Raises MqError with the code INVALID_PARAMETER, whose text names the kind and an example.
    """
    kind = kind_of(annotation)
    if not kind.accepts(value):
        raise wrong_kind(name, value, kind)


def wrong_kind(name: str, value: object, annotation: object) -> MqError:
    """Return the error for a value of a wrong kind. `annotation` may be a Kind."""
    kind = annotation if isinstance(annotation, Kind) else kind_of(annotation)
    example = f", such as {kind.example}" if kind.example else ""
    return invalid_parameter(
        f"{name} is {_SHOWN.repr(value)} ({type(value).__name__}): give {kind.text}{example}",
        about=name,
    )


def check_names(given: Collection[str], known: Collection[str]) -> None:
    """Raise MqError with the code INVALID_PARAMETER for the first name that is not known.

    The error suggests the most similar known name.
    """
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            nearest = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
            raise invalid_parameter(f"there is no option {name}: {hint}", about=name)


def check_arguments(function: Callable[..., object], **named: object) -> None:
    """Check some arguments of a call. For functions on the path of each message.

    Such a function checks common arguments itself, and calls this function for uncommon ones.
    Raises MqError like `check_kind`.
    """
    plan = _PLANS.get(function)
    if plan is None:
        plan = _PLANS[function] = _Plan(function)
    plan.check((), named)


def checks_itself(function: T) -> T:
    """Mark a method that checks its arguments itself, for `checked_class`."""
    setattr(function, _MARK, True)
    return function


def checked(function: T) -> T:
    """Return a function that checks its arguments before it runs.

    It raises MqError with the code INVALID_PARAMETER for the first argument of a wrong kind.
    """
    plan: _Plan | None = None
    call: Any = function

    def check(given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        nonlocal plan
        if plan is None:
            plan = _Plan(call)
        plan.check(given, named)

    if inspect.iscoroutinefunction(call):

        @wraps(call)
        async def checked_call(*given: Any, **named: Any) -> Any:
            check(given, named)
            return await call(*given, **named)

    else:

        @wraps(call)
        def checked_call(*given: Any, **named: Any) -> Any:
            check(given, named)
            return call(*given, **named)

    return typing.cast(T, checked_call)


def checked_class(cls: type[T]) -> type[T]:
    """Check the arguments of the constructor and the public methods that a class defines.

    A plain class checks the arguments of its asyncio client too, before it uses its loop.
    """
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod):
            setattr(cls, name, classmethod(checked(member.__func__)))
        elif inspect.isfunction(member) and not hasattr(member, _MARK):
            setattr(cls, name, checked(member))
    return cls


class _Plan:
    """The kinds of the parameters of a function."""

    def __init__(self, function: _F) -> None:
        self._positional: list[tuple[str, Kind]] = []
        self._named: dict[str, Kind] = {}
        self._rest: tuple[str, Kind] | None = None
        hints = annotations_of(function)
        for parameter in inspect.signature(function).parameters.values():
            kind = kind_of(hints.get(parameter.name, Any))
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = parameter.name, kind
            elif parameter.kind is not parameter.VAR_KEYWORD:
                self._named[parameter.name] = kind
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    self._positional.append((parameter.name, kind))

    def check(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        for value, (name, kind) in zip(given, self._positional, strict=False):
            if type(value) not in kind.exact and not kind.accepts(value):
                raise wrong_kind(name, value, kind)
        if self._rest is not None:
            name, kind = self._rest
            for value in given[len(self._positional) :]:
                if not kind.accepts(value):
                    raise wrong_kind(name, value, kind)
        for name, value in named.items():
            known = self._named.get(name)  # None: an option, or unknown to the function too
            if known is not None and type(value) not in known.exact and not known.accepts(value):
                raise wrong_kind(name, value, known)


_PLANS: dict[Callable[..., object], _Plan] = {}


class _Names(dict[str, object]):
    """The names that a module imports for type checkers only: those that this package exports.

    A name is imported when an annotation first uses it.
    """

    def __init__(self, module: Mapping[str, object]) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> object:
        package = sys.modules[__package__.partition(".")[0]]
        if name in self._module or name not in package.__all__:
            raise KeyError(name)
        return getattr(package, name)


def annotations_of(function: _F) -> dict[str, object]:
    """Return the evaluated annotations of the parameters of a function."""
    original = inspect.unwrap(function)
    module = original.__globals__
    return {
        name: eval(text, module, _Names(module)) if isinstance(text, str) else text
        for name, text in original.__annotations__.items()
        if name != "return" and not text.startswith("Unpack[")
    }


_PLAIN: dict[object, Kind] = {
    Any: Kind(lambda _: True, "any value"),
    object: Kind(lambda _: True, "any value"),
    None: Kind(lambda value: value is None, "None", "None", frozenset({NoneType})),
    NoneType: Kind(lambda value: value is None, "None", "None", frozenset({NoneType})),
    str: Kind(lambda value: isinstance(value, str), "a string", '"text"', frozenset({str})),
    bytes: Kind(
        lambda value: isinstance(value, bytes), "bytes", '"text".encode()', frozenset({bytes})
    ),
    bool: Kind(lambda value: isinstance(value, bool), "True or False", "True", frozenset({bool})),
    # A bool is not accepted as a number, but an integer of numpy is.
    int: Kind(
        lambda value: isinstance(value, SupportsIndex) and not isinstance(value, bool),
        "a whole number",
        "3",
        frozenset({int}),
    ),
    float: Kind(
        lambda value: isinstance(value, int | float) and not isinstance(value, bool),
        "a number",
        "0.5",
        frozenset({float}),
    ),
    timedelta: Kind(
        lambda value: isinstance(value, timedelta),
        "a timedelta",
        "timedelta(seconds=5)",
        frozenset({timedelta}),
    ),
    datetime: Kind(
        lambda value: isinstance(value, datetime),
        "a datetime",
        "datetime.now(UTC)",
        frozenset({datetime}),
    ),
    random.Random: Kind(
        lambda value: isinstance(value, random.Random), "a random.Random", "random.Random()"
    ),
}


def kind_of(annotation: Any) -> Kind:
    """Return the kind of an annotation that is already evaluated."""
    kind = _PLAIN.get(annotation)
    if kind is None:
        kind = _PLAIN[annotation] = _new_kind(annotation)
    return kind


def _new_kind(annotation: Any) -> Kind:  # noqa: PLR0911  # one for each sort of annotation
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, UnionType):
        return _any_of([kind_of(each) for each in inner])
    if origin is Literal:
        shown = [repr(each) for each in inner]
        return Kind(lambda value: value in inner, " or ".join(shown), shown[0])
    if origin is tuple and inner[-1] is not Ellipsis:
        return _tuple_of([kind_of(each) for each in inner])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_of(*map(kind_of, inner))
    if origin is not None and issubclass(origin, Iterable):
        return _many_of(origin, kind_of(inner[0]))
    if origin is Callable or annotation is Callable:
        return Kind(callable, "a function", "print")
    cls = origin or annotation
    if isinstance(cls, TypeVar):
        return kind_of(Any)
    if issubclass(cls, Enum):
        shown = [str(member) for member in cls]
        exact = frozenset({cls})
        return Kind(lambda value: isinstance(value, cls), " or ".join(shown), shown[0], exact)
    return _of_class(cls)


def _of_class(cls: Any) -> Kind:
    example = _EXAMPLES.get(cls.__name__, "")
    text = f"{'an' if cls.__name__[0] in 'AEIO' else 'a'} {cls.__name__}"
    if cls is PathLike:
        return Kind(lambda value: isinstance(value, PathLike), "a path", 'Path("file")')
    if issubclass(cls, Protocol):
        methods = [
            name
            for name, member in vars(cls).items()
            if inspect.isfunction(member) and (name == "__call__" or not name.startswith("_"))
        ]
        return Kind(lambda value: all(hasattr(value, name) for name in methods), text, example)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):  # a NamedTuple
        fields = [kind_of(each) for each in typing.get_type_hints(cls).values()]
        return Kind(
            lambda value: (
                isinstance(value, cls)
                and all(kind.accepts(field) for kind, field in zip(fields, value, strict=True))
            ),
            text,
            example,
        )
    return Kind(lambda value: isinstance(value, cls), text, example, frozenset({cls}))


def _any_of(kinds: Sequence[Kind]) -> Kind:
    exact = frozenset[type]().union(*[kind.exact for kind in kinds])
    return Kind(
        lambda value: type(value) in exact or any(kind.accepts(value) for kind in kinds),
        " or ".join(kind.text for kind in kinds),
        kinds[0].example,
        exact,
    )


def _mapping_of(key: Kind, value: Kind) -> Kind:
    def accepts(given: Any) -> bool:
        return isinstance(given, Mapping) and all(
            key.accepts(name) and value.accepts(each) for name, each in given.items()
        )

    example = f"{{{key.example}: {value.example}}}"
    return Kind(accepts, f"a mapping from {key.text} to {value.text}", example)


def _tuple_of(kinds: Sequence[Kind]) -> Kind:
    def accepts(given: Any) -> bool:
        return (
            isinstance(given, Sequence)
            and not isinstance(given, str | bytes)
            and len(given) == len(kinds)
            and all(kind.accepts(each) for kind, each in zip(kinds, given, strict=True))
        )

    text = ", ".join(kind.text for kind in kinds)
    return Kind(accepts, f"a tuple ({text})", f"({', '.join(kind.example for kind in kinds)})")


def _many_of(origin: type, element: Kind) -> Kind:
    """Return the kind of a sequence, collection or iterable. Text is never one."""
    exact = element.exact

    def accepts(given: Any) -> bool:
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            return False
        if isinstance(given, Collection):
            # The types first: this takes a fifth of the time, for lists of many messages.
            return exact.issuperset(map(type, given)) or all(map(element.accepts, given))
        return origin is Iterable  # its elements can be read only once

    return Kind(accepts, f"a list (each element is {element.text})", f"[{element.example}]")
