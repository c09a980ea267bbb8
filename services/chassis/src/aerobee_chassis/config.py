"""Load the options of a service: one model per process, from several sources.

The precedence is: command line, --set, environment, file, default. Environment variables are
AEROBEE_<FIELD> (for example AEROBEE_LISTEN_PORT) and those in a model's `environment_aliases` (for
example NAMESRV_ADDR). A file is RocketMQ's `broker.conf` (key=value lines) or a JSON object.

A key that only RocketMQ has is ignored, and one warning lists these keys. If the user would miss
the effect of such a key, it is rejected. A key that differs from a known key only in its case is
read as the known key, with a note. An unknown key is rejected, with the nearest known key as a
hint.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic.alias_generators import to_camel

from aerobee_chassis.errors import ConfigError

MIB = 1024 * 1024

ENVIRONMENT_PREFIX = "AEROBEE_"

# The lowest similarity of a misspelt name to a known one, without the prefix. The variables of two
# services (BROKER_PORT and BROKER_ID) are less similar.
_MISSPELT = 0.85

Port = Annotated[int, Field(ge=0, le=65_535)]
Milliseconds = Annotated[int, Field(ge=1)]

OptionsType = TypeVar("OptionsType", bound="Options")


class Promise(NamedTuple):
    """The reason for rejecting a key.

    `kept` contains accepted values, in lower case, that ask for nothing beyond this service.
    `instead` says why other values are rejected, and how to change them.
    """

    kept: frozenset[str]
    instead: str


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """RocketMQ's keys that a service knows besides its own options, from a TOML table.

    Each key is in the table once.

    - `harmless` contains keys without effect here.
    - `promises` contains keys for a feature that this service does not have. A key may end with
      "*", which matches every ending.
    - `renamed` maps another name of an option to its key.
    """

    harmless: frozenset[str] = frozenset()
    promises: Mapping[str, Promise] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the table from a TOML file.

        The file has `harmless`, with keys separated by white space; `[renamed]`; and `[[refused]]`
        with `keys`, `kept` and `instead`.
        """
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        promises = {
            key: Promise(frozenset(each["kept"]), " ".join(each["instead"].split()))
            for each in table.get("refused", ())
            for key in each["keys"].split()
        }
        return cls(frozenset(table["harmless"].split()), promises, table.get("renamed", {}))

    def __iter__(self) -> Iterator[str]:
        """Iterate over all keys of the table."""
        yield from self.harmless
        yield from self.promises
        yield from self.renamed

    def promise(self, key: str) -> Promise | None:
        """Return the reason for rejecting `key`, or None if the key is not rejected.

        The case is ignored for entries that end with "*".
        """
        if key in self.promises:
            return self.promises[key]
        patterns = (pattern for pattern in self.promises if "*" in pattern)
        for pattern in patterns:
            if fnmatchcase(key.casefold(), pattern.casefold()):
                return self.promises[pattern]
        return None


class Options(BaseModel):
    """The base class of a service's options.

    Fields are in snake_case, keys (aliases) in RocketMQ's camelCase. A validator of one field
    raises ValueError; a validator of several fields raises ConfigError.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    # RocketMQ's keys that this service does not have as options.
    known_keys: ClassVar[KnownKeys] = KnownKeys()
    # environment variable → key
    environment_aliases: ClassVar[Mapping[str, str]] = {}
    # Variables of another service, which the image sets for all. They are not reported as misspelt.
    foreign_variables: ClassVar[frozenset[str]] = frozenset()

    bind_address: str = "127.0.0.1"
    metrics_exporter_type: Literal["DISABLE", "PROM"] = "DISABLE"
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_prom_exporter_port: Port = 0  # each service has its own default
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    # Not in RocketMQ: "auto" writes lines for people on a terminal, and JSON elsewhere.
    log_format: Literal["auto", "json", "console"] = "auto"
    # Not in RocketMQ: the limit for the bytes of requests that were read and of answers that
    # callers have not read. A caller that reads nothing of its answer for the time below is
    # disconnected.
    max_in_flight_bytes: int = Field(default=256 * MIB, ge=16 * MIB)
    stalled_client_timeout_millis: Milliseconds = 30_000

    _ignored: tuple[str, ...] = PrivateAttr(default=())
    _misspelt: tuple[str, ...] = PrivateAttr(default=())
    _notes: tuple[str, ...] = PrivateAttr(default=())

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """Return the given keys that only RocketMQ has and that have no effect here, sorted."""
        return self._ignored

    @property
    def misspelt_variables(self) -> tuple[str, ...]:
        """Return a hint for each misspelt environment variable.

        Example: "AEROBEE_LISTEN_PROT: did you mean AEROBEE_LISTEN_PORT?". A variable is misspelt if
        it has no effect and is similar to a variable that has an effect.
        """
        return self._misspelt

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes about the sources: keys in another case, and keys that a file repeats."""
        return self._notes

    def to_json(self) -> dict[str, Any]:
        """Return a map from key to value, as `--print-config` shows it."""
        return self.model_dump(by_alias=True, mode="json")

    @classmethod
    def keys_shown(cls) -> list[str]:
        """Return the keys as they are spelt in files and by `--print-config`."""
        return [info.alias or name for name, info in cls.model_fields.items()]

    @classmethod
    def keys(cls) -> dict[str, str]:
        """Return a map from every accepted spelling of a key to its field name."""
        spellings = {name: name for name in cls.model_fields}
        for name, info in cls.model_fields.items():
            spellings[info.alias or name] = name
        renamed = {key: spellings[option] for key, option in cls.known_keys.renamed.items()}
        return {**renamed, **spellings}

    @classmethod
    def known_key(cls, key: str) -> str | None:
        """Return the known spelling of `key`, ignoring the case, or None for an unknown key."""
        known = {*cls.keys(), *cls.known_keys}
        if key in known:
            return key
        folded: dict[str, str] = {each.casefold(): each for each in known}
        if key.casefold() in folded:
            return folded[key.casefold()]
        return key if cls.known_keys.promise(key) is not None else None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Create options from keys and their values.

        Raises ConfigError for an unknown key or an invalid value.
        """
        spellings = cls.keys()
        options: dict[str, Any] = {}
        ignored = set()
        for given, value in values.items():
            key = cls.known_key(given)
            if key is None:
                raise _unknown(given, [*cls.keys_shown(), *cls.known_keys])
            if key in spellings:
                options[spellings[key]] = value
            elif (promise := cls.known_keys.promise(key)) is None:
                ignored.add(key)
            elif str(value).strip().lower() not in promise.kept:
                raise ConfigError(f"option {given}={value!r}: {promise.instead}", given)
        try:
            made = cls.model_validate(options)
        except ValidationError as error:
            raise _first_problem(cls, error) from None
        made._ignored = tuple(sorted(ignored))
        return made


def load(
    model: type[OptionsType],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    cli: Mapping[str, Any] | None = None,
) -> OptionsType:
    """Load options of type `model` from all sources.

    `sets` contains "key=value" strings. A value None in `cli` means that the option is not given.
    Raises ConfigError, for example if `sets` repeats a key.
    """
    fields = model.keys()
    notes: list[str] = []

    def known(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the field name and the value of each pair. Yield other keys unchanged."""
        for given, value in pairs:
            key = model.known_key(given) or given
            if key != given:
                notes.append(f"{given} is read as {key}")
            yield fields.get(key, key), value

    in_file = list(known(read_file(file) if file else ()))
    counts = Counter(name for name, _ in in_file)
    notes += [
        f"{_shown(model, name)} stands in the file {count} times: the last one counts"
        for name, count in counts.items()
        if count > 1
    ]
    layers: list[Mapping[str, Any]] = [
        dict(in_file),
        _from_environment(model, environ or {}),
        _each_once(model, known(map(_split, sets))),
        dict(known((key, value) for key, value in (cli or {}).items() if value is not None)),
    ]
    options = model.from_values({key: value for layer in layers for key, value in layer.items()})
    options._misspelt = tuple(_misspelt(model, environ or {}))
    options._notes = tuple(notes)
    return options


def read_file(path: Path) -> list[tuple[str, Any]]:
    """Read keys and values, in order, from a JSON object or from key=value lines.

    A line that starts with # or ! is a comment. A key that occurs twice is returned twice. Raises
    ConfigError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"cannot read the configuration file {path}: {error.strerror}"
        raise ConfigError(problem, str(path)) from None
    if text.lstrip().startswith("{"):
        return _of_json(path, text)
    values = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            problem = f"{path}:{number}: not a key=value line: {stripped[:60]!r}"
            raise ConfigError(problem, f"{path}:{number}")
        values.append((key.strip(), value.strip()))
    return values


def _of_json(path: Path, text: str) -> list[tuple[str, Any]]:
    try:
        # Load objects as lists of pairs, so that repeated keys are detected.
        content = json.loads(text, object_pairs_hook=list)
    except ValueError as error:
        problem = f"the configuration file {path} is not valid JSON: {error}"
        raise ConfigError(problem, str(path)) from None
    return [(str(key), value) for key, value in content]


def _each_once(model: type[Options], pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict. Raises ConfigError for a repeated key."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            key = _shown(model, name)
            problem = f"--set {key} is given twice ({values[name]!r}, {value!r}): give it once"
            raise ConfigError(problem, key)
        values[name] = value
    return values


def _shown(model: type[Options], name: str) -> str:
    """Return the key of a field as it is spelt in files. Return other names unchanged."""
    info = model.model_fields.get(name)
    return (info.alias if info else None) or name


def _split(item: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {item!r}: write it as key=value", "--set")
    return key.strip(), value.strip()


def _from_environment(model: type[Options], environ: Mapping[str, str]) -> dict[str, str]:
    # Ignore unknown variables: they may belong to another service.
    by_variable = {ENVIRONMENT_PREFIX + name.upper(): name for name in model.model_fields}
    by_variable.update(model.environment_aliases)
    ordered = sorted(by_variable, key=lambda variable: variable.startswith(ENVIRONMENT_PREFIX))
    return {
        by_variable[variable]: environ[variable] for variable in ordered if environ.get(variable)
    }


def _misspelt(model: type[Options], environ: Mapping[str, str]) -> Iterator[str]:
    known = [name.upper() for name in model.model_fields]
    for variable in sorted(environ):
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if name != variable and name not in known and variable not in model.foreign_variables:
            for nearest in difflib.get_close_matches(name, known, n=1, cutoff=_MISSPELT):
                yield f"{variable}: did you mean {ENVIRONMENT_PREFIX}{nearest}?"


def _unknown(key: str, known: list[str]) -> ConfigError:
    nearest = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "--print-config shows the keys"
    return ConfigError(f"unknown option {key!r}: {hint}", key)


def _first_problem(model: type[Options], error: ValidationError) -> ConfigError:
    problem = error.errors()[0]
    key = _shown(model, str(problem["loc"][0]))
    text = str(problem["msg"]).removeprefix("Value error, ")
    return ConfigError(f"option {key}={problem['input']!r}: {text}", key)
