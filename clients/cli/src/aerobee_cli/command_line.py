"""Groups of commands over click. A command is made from its function, and only when it is used.

The parameters of a function are annotated with `Option` or `Argument`. Parameters that several
commands share are the fields of a dataclass, which annotates one parameter. The docstring of the
function is the help. A group imports the modules of its subcommands when they run, so that
`aerobee --help` imports none.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

import click

# Further settings of a command that takes arguments of another program.
Settings = Mapping[str, Any]
F = TypeVar("F", bound=Callable[..., None])


class Parameter(Protocol):
    """The metadata of an annotated parameter of a command's function."""

    def of(self, name: str, kind: Any, default: Any) -> click.Parameter:
        """Return the parameter for click. `default` is `inspect.Parameter.empty` for none."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A positional argument. It is required if the function has no default for it.

    A list has one or more values.
    """

    metavar: str
    help: str = ""

    def of(self, name: str, kind: Any, default: Any) -> click.Parameter:
        is_required = default is inspect.Parameter.empty
        several = get_origin(kind) is list
        # click takes a default of None for a value: a required argument has no default.
        further = {} if is_required else {"default": default}
        return click.Argument(
            [name], type=_type_of(get_args(kind)[0] if several else kind), metavar=self.metavar,
            required=is_required, help=self.help, nargs=-1 if several else 1, **further,
        )  # fmt: skip


class Option:
    """An option. Its name is that of the function's parameter, unless `names` are given.

    A list may be given several times. `parser` converts the text, and raises ValueError or an error
    of click. Numbers have bounds `min` and `max`.
    """

    def __init__(
        self,
        *names: str,
        metavar: str | None = None,
        help: str = "",
        min: float | None = None,
        max: float | None = None,
        parser: Callable[[Any], Any] | None = None,
        **further: Any,
    ) -> None:
        self._names = names
        self._bounds = (min, max)
        self._parser = parser
        self._further = {"metavar": metavar, "help": help, **further}

    def of(self, name: str, kind: Any, default: Any) -> click.Parameter:
        names = self._names or (f"--{name.replace('_', '-')}",)
        several = get_origin(kind) is list
        if several:
            [kind] = get_args(kind)
        is_required = default is inspect.Parameter.empty
        further = dict(self._further)
        if not is_required:  # click takes a default of None for a value
            # The help shows an enumeration's member as the user writes it: click shows names.
            further["default"] = default.value if isinstance(default, Enum) else default
        if kind is bool:
            further["is_flag"] = True
        else:
            made = _type_of(kind, *self._bounds)
            further["type"] = _Parsed(self._parser) if self._parser is not None else made
            further["show_default"] = bool(default) and not is_required
        return click.Option([*names, name], multiple=several, required=is_required, **further)


class _Parsed(click.ParamType[Any]):
    """A value that a function converts."""

    name = "text"

    def __init__(self, parser: Callable[[Any], Any]) -> None:
        self._parser = parser

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parser(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _OneOf(click.Choice[str]):
    """A member of an enumeration, which is given by its value."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__([str(member.value) for member in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, self._kind):
            return value
        return self._kind(super().convert(value, param, ctx))


def _type_of(kind: Any, low: float | None = None, high: float | None = None) -> Any:
    """Return click's type for a Python type. `low` and `high` are the bounds of a number."""
    is_bounded = low is not None or high is not None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _OneOf(kind)
    if kind is int:
        return click.IntRange(_int(low), _int(high)) if is_bounded else click.INT
    if kind is float:
        return click.FloatRange(low, high) if is_bounded else click.FLOAT
    return click.Path(path_type=Path) if kind is Path else click.STRING


def _int(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of a group: how to make it, and the sentence about it in the group's help."""

    load: Callable[[], click.Command]
    short_help: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function that becomes a command."""

    call: Callable[..., None]
    name: str
    epilog: str
    settings: Settings = field(default_factory=dict)

    def command(self) -> click.Command:
        parameters, arguments_of = parameters_of(self.call)
        return OnceOptions(
            self.name,
            callback=lambda **values: self.call(**arguments_of(values)),
            params=parameters,
            help=inspect.getdoc(self.call),
            epilog=self.epilog,
            **self.settings,
        )


class OnceOptions(click.Command):
    """A command that refuses an option given twice, whose first value would be lost.

    A flag without an opposite may be repeated, and so may an option that is a list.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for param, times in Counter(order).items():
                if times > 1 and isinstance(param, click.Option) and _has_one_value(param):
                    name = "/".join([*param.opts[:1], *param.secondary_opts[:1]])
                    raise click.UsageError(f"{name} is given {times} times: give it once", ctx)
        return super().parse_args(ctx, args)


def _has_one_value(option: click.Option) -> bool:
    return not option.multiple and (not option.is_flag or bool(option.secondary_opts))


def parameters_of(
    function: Callable[..., Any],
) -> tuple[list[click.Parameter], Callable[[dict[str, Any]], dict[str, Any]]]:
    """Return the parameters of a command for click, and how to call its function.

    The second result takes the values of the parameters, and returns the arguments of the function.
    An argument may be the context, or a dataclass whose fields are parameters.
    """
    hints = get_type_hints(function, include_extras=True)
    found: list[click.Parameter] = []
    makers: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        if hint is click.Context:
            makers[name] = lambda values: click.get_current_context()
        elif isinstance(hint, type) and is_dataclass(hint):
            shared, arguments_of = parameters_of(hint)
            found += shared
            makers[name] = partial(_made, hint, arguments_of)
        else:
            found.append(_parameter(function, name, hint, parameter.default))
            makers[name] = itemgetter(name)
    return found, lambda values: {name: make(values) for name, make in makers.items()}


def _made(kind: Any, arguments_of: Callable[[Any], Any], values: dict[str, Any]) -> Any:
    return kind(**arguments_of(values))


def _parameter(function: Any, name: str, hint: Any, default: Any) -> click.Parameter:
    assert get_origin(hint) is Annotated, f"{function.__name__}: {name} is not annotated"
    kind, metadata = get_args(hint)
    given = [each for each in get_args(kind) if each is not NoneType]
    if len(given) == 1 and get_origin(kind) is not list:  # X | None
        [kind] = given
    made: click.Parameter = metadata.of(name, kind, default)
    return made


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text, in one line."""
    paragraph = " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + "." if stop else paragraph


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error about an unknown name: the nearest of the known ones.

    If none is near, return `otherwise`, or all known names.
    """
    from difflib import get_close_matches

    names = {each.casefold(): each for each in known}
    if found := get_close_matches(name.casefold(), names, n=1):
        return f"did you mean {names[found[0]]}?"
    return otherwise or f"there are {', '.join(names.values())}"


class CommandGroup(OnceOptions, click.Group):
    """A group of commands, each of which is made when it is first used."""

    def __init__(self, name: str | None = None, **settings: Any) -> None:
        super().__init__(name, **{"no_args_is_help": True, **settings})
        self._entries: dict[str, Entry] = {}

    def add(
        self, name: str = "", *, epilog: str, settings: Settings | None = None
    ) -> Callable[[F], F]:
        """Return a decorator that adds a function. Its name is the default for `name`."""

        def added(function: F) -> F:
            own = name or function.__name__.replace("_", "-")
            load = Function(function, own, epilog, settings or {}).command
            self.add_lazily(own, load, first_sentence(function.__doc__ or ""))
            return function

        return added

    def add_lazily(self, name: str, load: Callable[[], click.Command], short_help: str) -> None:
        """Add a command that `load` returns. `short_help` is one sentence."""
        self._entries[name] = Entry(load, short_help)

    def add_group(self, name: str, *, help: str, short_help: str = "") -> CommandGroup:
        """Add a group of commands, and return it. `help` is the default for `short_help`."""
        group = CommandGroup(name, help=help)
        self.add_lazily(name, lambda: group, short_help or help)
        return group

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        """Return the names of the commands in the order in which they were added."""
        return list(self._entries)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self._entries:
            self.commands[cmd_name] = self._entries[cmd_name].load()
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named first. Raises UsageError with the nearest names."""
        name = args[0]
        if name.startswith("-") or self.get_command(ctx, name) or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"no command {name!r}: {nearest(name, self._entries)}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a whole sentence for each command. click would cut it at the end of the line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.short_help) for name, each in self._entries.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples of the commands, unless the group has an epilog of its own."""
        if self.epilog:
            super().format_epilog(ctx, formatter)
            return
        commands = [self.get_command(ctx, name) for name in self._entries]
        epilogs = [each.epilog for each in commands if each is not None and each.epilog]
        with formatter.section("Examples"):
            for epilog in epilogs:
                formatter.write(f"{'':{formatter.current_indent}}{epilog.partition(': ')[2]}\n")


class ServiceGroup(CommandGroup):
    """A group of subcommands. Without a subcommand, all arguments are passed to the service."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            ctx.obj = list(args)
            args = []
        return super().parse_args(ctx, args)
