"""Options of a service: one model per process, from command line, `--set`, environment and file.

Precedence: command line > --set > environment > file > default. Environment: AEROBEE_<FIELD> (for
example AEROBEE_LISTEN_PORT) and what a model names in `environment_aliases` (for example
NAMESRV_ADDR). A file is RocketMQ's `broker.conf` (key=value lines) or a JSON object. A key that
RocketMQ has and this service does not is collected for one warning, or refused where the user would
miss its effect; a key that nobody knows is refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic.alias_generators import to_camel

from aerobee_chassis.errors import ConfigError

MIB = 1024 * 1024

ENVIRONMENT_PREFIX = "AEROBEE_"

# Least similarity of a misspelt name to a known one, without the prefix. The variables of two
# services (BROKER_PORT and BROKER_ID) are less similar.
_MISSPELT = 0.85

Port = Annotated[int, Field(ge=0, le=65_535)]
Milliseconds = Annotated[int, Field(ge=1)]

OptionsType = TypeVar("OptionsType", bound="Options")


class Promise(NamedTuple):
    """What a key of RocketMQ promises and this service cannot. `kept`: the values, in lower case,
    that ask for no more than what holds here. `instead`: why others are refused, and what to do."""

    kept: frozenset[str]
    instead: str


class Options(BaseModel):
    """Base of a service's options: fields in snake_case, keys (aliases) in RocketMQ's camelCase.

    The validator of a field raises ValueError, one of several fields ConfigError.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    # RocketMQ's keys that have no effect in this service.
    unsupported_keys: ClassVar[frozenset[str]] = frozenset()
    # RocketMQ's keys, or their beginning and "*", whose effect a user would miss.
    promises: ClassVar[Mapping[str, Promise]] = {}
    # A key of an earlier version of RocketMQ → the field that has another key now.
    former_keys: ClassVar[Mapping[str, str]] = {}
    # environment variable → key
    environment_aliases: ClassVar[Mapping[str, str]] = {}
    # Variables of another service, which the image sets for all: no misspelling of one of these.
    foreign_variables: ClassVar[frozenset[str]] = frozenset()

    bind_address: str = "127.0.0.1"
    metrics_exporter_type: Literal["DISABLE", "PROM"] = "DISABLE"
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_prom_exporter_port: Port = 0  # each service has a default of its own
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    # Ours: bytes of requests that are read and of answers that no caller has taken. A caller that
    # takes nothing of its answer for the time below is cut off.
    max_in_flight_bytes: int = Field(default=256 * MIB, ge=16 * MIB)
    stalled_client_timeout_millis: Milliseconds = 30_000

    _ignored: tuple[str, ...] = PrivateAttr(default=())
    _misspelt: tuple[str, ...] = PrivateAttr(default=())

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """RocketMQ's keys that were given and have no effect here, sorted."""
        return self._ignored

    @property
    def misspelt_variables(self) -> tuple[str, ...]:
        """A hint for each environment variable without effect whose name is similar to one with:
        "AEROBEE_LISTEN_PROT: did you mean AEROBEE_LISTEN_PORT?".
        """
        return self._misspelt

    def to_json(self) -> dict[str, Any]:
        """Key → value, as `--print-config` shows it."""
        return self.model_dump(by_alias=True, mode="json")

    @classmethod
    def keys_shown(cls) -> list[str]:
        """The keys, spelt as in files and `--print-config`."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def keys(cls) -> dict[str, str]:
        """Every accepted spelling of a key → field name."""
        spellings = {name: name for name in cls.model_fields}
        for name, field in cls.model_fields.items():
            spellings[field.alias or name] = name
        return {**cls.former_keys, **spellings}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Options from key → value. Raises ConfigError for an unknown key or a bad value."""
        spellings = cls.keys()
        known: dict[str, Any] = {}
        ignored = set()
        for key, value in values.items():
            if key in spellings:
                known[spellings[key]] = value
            elif key in cls.unsupported_keys:
                ignored.add(key)
            elif (promise := cls._promise(key)) is not None:
                if str(value).strip().lower() not in promise.kept:
                    raise ConfigError(f"option {key}={value!r}: {promise.instead}", key)
            else:
                raise _unknown(key, [*cls.keys_shown(), *cls.unsupported_keys, *cls.promises])
        try:
            options = cls.model_validate(known)
        except ValidationError as error:
            raise _first_problem(cls, error) from None
        options._ignored = tuple(sorted(ignored))
        return options

    @classmethod
    def _promise(cls, key: str) -> Promise | None:
        patterns = (pattern for pattern in cls.promises if fnmatchcase(key, pattern))
        return next((cls.promises[pattern] for pattern in patterns), None)


def keys_in(path: Path) -> frozenset[str]:
    """The keys of a text file, one a line; # starts a comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def load(
    model: type[OptionsType],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    cli: Mapping[str, Any] | None = None,
) -> OptionsType:
    """Options of type `model` from all sources.

    `sets` holds "key=value" strings; a `cli` value of None counts as not given. Raises ConfigError.
    """
    layers: list[Mapping[str, Any]] = [
        read_file(file) if file else {},
        _from_environment(model, environ or {}),
        dict(_split(item) for item in sets),
        {key: value for key, value in (cli or {}).items() if value is not None},
    ]
    spellings = model.keys()
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            merged[spellings.get(key, key)] = value
    options = model.from_values(merged)
    options._misspelt = tuple(_misspelt(model, environ or {}))
    return options


def read_file(path: Path) -> dict[str, Any]:
    """Key → value of a JSON object or of key=value lines (# and ! start a comment).

    Raises ConfigError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"cannot read the configuration file {path}: {error.strerror}"
        raise ConfigError(problem, str(path)) from None
    if text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except ValueError as error:
            problem = f"the configuration file {path} is not valid JSON: {error}"
            raise ConfigError(problem, str(path)) from None
        return dict(content)
    values = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            problem = f"{path}:{number}: not a key=value line: {stripped[:60]!r}"
            raise ConfigError(problem, f"{path}:{number}")
        values[key.strip()] = value.strip()
    return values


def _split(item: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {item!r}: write it as key=value", "--set")
    return key.strip(), value.strip()


def _from_environment(model: type[Options], environ: Mapping[str, str]) -> dict[str, str]:
    # An unknown variable is no error: it may be another service's.
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
    name = str(problem["loc"][0])
    field = model.model_fields.get(name)
    key = (field.alias if field else None) or name
    text = str(problem["msg"]).removeprefix("Value error, ")
    return ConfigError(f"option {key}={problem['input']!r}: {text}", key)
