"""Load the options of a service: one model per process, from several sources.

The precedence is: command line, --set, environment, file, default. Environment variables are
AEROBEE_<FIELD> (for example AEROBEE_LISTEN_PORT) and those in a model's `environment_aliases` (for
example NAMESRV_ADDR). A file is RocketMQ's `broker.conf` (key=value lines) or a JSON object.

A key that only RocketMQ has is ignored, as is that of a former option, and one warning lists these
keys. If the user would miss the effect of such a key, it is rejected. A key that differs from a
known key only in its case is read as the known key, with a note. An unknown key is rejected, with
the nearest known key as a hint. One error names all problems of all sources, with the lines of the
file.

A secret is a `SecretStr`, which neither `--print-config` nor an error shows. It has a second option
with "File" at the end of its key: the path of a file with the secret.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from aerobee_chassis.errors import ConfigError

MIB = 1024 * 1024

ENVIRONMENT_PREFIX = "AEROBEE_"

Source = Literal["default", "file", "environment", "command line"]
COMMAND_LINE: Source = "command line"

# The lowest similarity of a misspelt name to a known one, without the prefix. The variables of two
# services (BROKER_PORT and BROKER_ID) are less similar.
_MISSPELT = 0.85

Port = Annotated[int, Field(ge=0, le=65_535)]
Milliseconds = Annotated[int, Field(ge=1)]

_RECEIVER = re.compile(r"(?:https?://)?(?:[^\s:/\[\]]+|\[[0-9a-f:.]+\]):(\d{1,5})/?", re.IGNORECASE)


def _receiver(value: str) -> str:
    """Check the address of an OTLP receiver: it needs a port."""
    found = _RECEIVER.fullmatch(value.strip())
    if value and not (found and 0 < int(found[1]) <= 65_535):
        raise ValueError("use http://HOST:PORT, or https://HOST:PORT for TLS")
    return value


# The receiver of OTLP: "http://host:port" in plaintext, else with TLS.
Receiver = Annotated[str, AfterValidator(_receiver)]

# Labels of a process: metricsLabel may not replace them.
OWN_LABELS = frozenset({"cluster", "node_type", "node_id", "aggregation"})
_METADATA = re.compile(r"[a-z0-9_.-]+")  # the names that gRPC sends
_LABEL = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
# Keys of RocketMQ that may have a secret, and options with one.
_SECRET_KEY = re.compile(r"password|secret|credential|token|header$|initAuthenticationUser$", re.I)
_FILE = "_file"  # the end of the field with the path of a secret

OptionsType = TypeVar("OptionsType", bound="Options")


class Promise(NamedTuple):
    """The reason for rejecting a key.

    - `kept` contains accepted values, in lower case, that ask for nothing beyond this service. A
      value may end with "*", which matches every ending.
    - `instead` says why other values are rejected, and how to change them.
    - `kept_path` is an accepted path, which may begin with another option: "{storePathRootDir}/x".
    """

    kept: frozenset[str]
    instead: str
    kept_path: str = ""

    def keeps(self, value: str, options: Mapping[str, str]) -> bool:
        """Return whether `value` is accepted. `options` has the options by their keys."""
        if self.kept_path:
            path = self.kept_path.format_map(options)
            if _normal_path(value) == _normal_path(path):
                return True
        return any(fnmatchcase(value.lower(), pattern) for pattern in self.kept)


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """RocketMQ's keys that a service knows besides its own options, from a TOML table.

    Each key is in the table once.

    - `harmless` maps each key without effect here to the reason why nothing is missed.
    - `promises` contains keys for a feature that this service does not have. A key may end with
      "*", which matches every ending.
    - `renamed` maps another name of an option to its key.
    """

    harmless: Mapping[str, str] = field(default_factory=dict)
    promises: Mapping[str, Promise] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the table from a TOML file.

        The file has `[[harmless]]` with `keys`, separated by white space, and `because`;
        `[renamed]`; and `[[refused]]` with `keys`, `kept`, `instead`, and perhaps `kept_path`.
        """
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        harmless = {
            key: " ".join(each["because"].split())
            for each in table["harmless"]
            for key in each["keys"].split()
        }
        promises = {
            key: Promise(
                frozenset(each["kept"]),
                " ".join(each["instead"].split()),
                each.get("kept_path", ""),
            )
            for each in table.get("refused", ())
            for key in each["keys"].split()
        }
        return cls(harmless, promises, table.get("renamed", {}))

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


def pairs_of(text: str) -> dict[str, str]:
    """Return the pairs of "name:value,name:value". Raises ValueError for another form."""
    pairs = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, found, value = (each.strip() for each in part.partition(":"))
        if not (name and found and value):
            raise ValueError(f"write name:value,name:value, not {part[:32]!r}")
        pairs[name] = value
    return pairs


def metadata_of(text: str) -> dict[str, str]:
    """Return the pairs of "name:value,name:value" as metadata of gRPC.

    Raises ValueError for another form, and for what gRPC does not send.
    """
    pairs = {name.lower(): value for name, value in pairs_of(text).items()}
    for name, value in pairs.items():
        if not _METADATA.fullmatch(name) or name.endswith("-bin"):
            raise ValueError(
                f"{name!r} is not the name of a header: use letters, digits, '-', '_' and '.', and "
                "not the end '-bin'"
            )
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of {name} has other characters than printable ASCII")
    return pairs


class Entry(NamedTuple):
    """A key of a file with its value. `place` is the file with the line: "broker.conf:3"."""

    key: str
    value: Any
    line: int
    place: str


class Options(BaseModel):
    """The base class of a service's options.

    Fields are in snake_case, keys (aliases) in RocketMQ's camelCase. A validator of one field
    raises ValueError. `conflicts` checks several fields.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        validate_default=True,
        defer_build=True,  # a base class never validates
    )

    # RocketMQ's keys that this service does not have as options.
    known_keys: ClassVar[KnownKeys] = KnownKeys()
    # Former options, which are accepted without effect.
    former_keys: ClassVar[frozenset[str]] = frozenset()
    # environment variable → key
    environment_aliases: ClassVar[Mapping[str, str]] = {}
    # The keys that may change at run time. None is a path, an address, a command or a secret, and
    # none can stop the service. RocketMQ allowed any key, which led to a shell (CVE-2023-37582).
    runtime_keys: ClassVar[frozenset[str]] = frozenset()
    # Variables of another service, which the image sets for all. They are not reported as misspelt.
    foreign_variables: ClassVar[frozenset[str]] = frozenset()

    bind_address: str = "127.0.0.1"
    metrics_exporter_type: Literal["DISABLE", "PROM", "OTLP_GRPC", "LOG"] = "DISABLE"
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_prom_exporter_port: Port = 0  # each service has its own default
    # The receiver of OTLP_GRPC: "http://host:port" in plaintext, else with TLS.
    metrics_grpc_exporter_target: Receiver = ""
    metrics_grpc_exporter_header: SecretStr = SecretStr("")  # "name:value,name:value"
    metrics_grpc_exporter_header_file: str = ""  # not in RocketMQ, like all options for secrets
    metric_grpc_exporter_interval_in_mills: Milliseconds = 60_000
    metric_grpc_exporter_time_out_in_mills: Milliseconds = 3_000
    metric_logging_exporter_interval_in_mills: Milliseconds = 10_000
    metrics_label: str = ""  # labels of each series: "name:value,name:value"
    metrics_in_delta: bool = False  # for OTLP_GRPC and LOG: changes in place of totals
    metrics_otel_cardinality_limit: int = Field(default=50_000, ge=1)  # series of a metric
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    # Not in RocketMQ: "auto" writes lines for people on a terminal, and JSON elsewhere.
    log_format: Literal["auto", "json", "console"] = "auto"
    # Not in RocketMQ: the limit for the bytes of requests that were read and of answers that
    # callers have not read. A caller that reads nothing of its answer for the time below is
    # disconnected.
    max_in_flight_bytes: int = Field(default=256 * MIB, ge=16 * MIB)
    stalled_client_timeout_millis: Milliseconds = 30_000
    # Not in RocketMQ: the limits of the port (`port_limits`). The largest request has a default for
    # each service.
    max_connections: int = Field(default=20_000, ge=1)
    max_connections_per_address: int = Field(default=2_000, ge=1)
    silent_connection_timeout_millis: Milliseconds = 10_000
    request_arrival_timeout_millis: Milliseconds = 30_000
    max_streams_per_connection: int = Field(default=10_000, ge=1)
    max_request_bytes: int = Field(default=64 * MIB, ge=1 * MIB, le=64 * MIB)

    _ignored: tuple[str, ...] = PrivateAttr(default=())
    _misspelt: tuple[str, ...] = PrivateAttr(default=())
    _notes: tuple[str, ...] = PrivateAttr(default=())
    _sources: Mapping[str, Source] = PrivateAttr(default_factory=dict)  # by field name

    @field_validator("metrics_label")
    @classmethod
    def _labels(cls, value: str) -> str:
        for name in pairs_of(value):
            if name in OWN_LABELS or not _LABEL.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not a label of your own: use letters, digits and _, and none of "
                    f"{', '.join(sorted(OWN_LABELS))}"
                )
        return value

    @field_validator("metrics_grpc_exporter_header")
    @classmethod
    def _headers(cls, value: SecretStr) -> SecretStr:
        metadata_of(value.get_secret_value())
        return value

    @property
    def secrets(self) -> set[str]:
        """Return the values that no log may show."""
        found = {getattr(self, name).get_secret_value() for name in self.secret_names()}
        return found | set(pairs_of(self.metrics_grpc_exporter_header.get_secret_value()).values())

    @classmethod
    def secret_names(cls) -> list[str]:
        """Return the names of the fields with secrets."""
        return [name for name, info in cls.model_fields.items() if info.annotation is SecretStr]

    @property
    def exports_metrics(self) -> bool:
        """Return whether a monitoring system gets the metrics."""
        return self.metrics_exporter_type != "DISABLE"

    @property
    def largest_request(self) -> int:
        """Return the bytes that one request may have."""
        return self.max_request_bytes

    @property
    def is_insecure(self) -> bool:
        """Return whether other machines may reach the port, and it serves each caller."""
        return False

    def expiries(self) -> Mapping[str, datetime]:
        """Return when the certificates of this process expire, by the keys of their options."""
        return {}

    def conflicts(self) -> Iterator[ConfigError]:
        """Yield an error for each conflict between options.

        Each text names all options that the conflict depends on: with an invalid value for one of
        them, the conflict is not reported.
        """
        if self.metrics_exporter_type == "OTLP_GRPC" and not self.metrics_grpc_exporter_target:
            yield ConfigError(
                "metricsExporterType=OTLP_GRPC needs metricsGrpcExporterTarget: give the receiver, "
                "for example http://localhost:4317",
                "metricsGrpcExporterTarget",
            )
        if self.metrics_exporter_type == "PROM" and self.metrics_in_delta:
            yield ConfigError(
                "metricsInDelta=true with metricsExporterType=PROM: Prometheus needs totals; "
                "remove metricsInDelta, or use OTLP_GRPC or LOG",
                "metricsInDelta",
            )

    @model_validator(mode="after")
    def _no_conflicts(self) -> Self:
        if problems := list(self.conflicts()):
            raise ConfigError.joined(problems, "the options")
        return self

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """Return the given keys without effect, of RocketMQ and of former options, sorted."""
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

    def source(self, key: str) -> Source:
        """Return from where the value of the option `key` comes."""
        return self._sources.get(self.keys()[key], "default")

    def to_json(self) -> dict[str, Any]:
        """Return a map from key to value, as `--print-config` shows it."""
        return self.model_dump(by_alias=True, mode="json")

    @classmethod
    def keys_shown(cls) -> list[str]:
        """Return the keys as they are spelt in files and by `--print-config`."""
        return [info.alias or name for name, info in cls.model_fields.items()]

    @classmethod
    @cache
    def keys(cls) -> Mapping[str, str]:
        """Return a map from every accepted spelling of a key to its field name."""
        spellings = {name: name for name in cls.model_fields}
        for name, info in cls.model_fields.items():
            spellings[info.alias or name] = name
        renamed = {key: spellings[option] for key, option in cls.known_keys.renamed.items()}
        return {**renamed, **spellings}

    @classmethod
    def known_key(cls, key: str) -> str | None:
        """Return the known spelling of `key`, ignoring the case, or None for an unknown key."""
        known, folded = cls._known_spellings()
        if key in known:
            return key
        if key.casefold() in folded:
            return folded[key.casefold()]
        return key if cls.known_keys.promise(key) is not None else None

    @classmethod
    @cache
    def _known_spellings(cls) -> tuple[Set[str], Mapping[str, str]]:
        """Return all known spellings, and a map to them from the same in lower case."""
        known = {*cls.keys(), *cls.known_keys, *cls.former_keys}
        return known, {each.casefold(): each for each in known}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Create options from keys and their values.

        Raises ConfigError with all unknown keys, invalid values and conflicts.
        """
        problems: list[ConfigError] = []
        made = cls._checked(values, problems)
        if made is None or problems:
            raise ConfigError.joined(problems, "the options")
        return made

    @classmethod
    def _checked(cls, values: Mapping[str, Any], problems: list[ConfigError]) -> Self | None:
        """Create options from keys and their values. Add all problems to `problems`.

        Return None if a value is invalid or options are in conflict.
        """
        spellings = cls.keys()
        options: dict[str, Any] = {}
        ignored = set()
        for given, value in values.items():
            key = cls.known_key(given)
            if key is None:
                problems.append(unknown_option(given, [*cls.keys_shown(), *cls.known_keys]))
            elif key in spellings:
                options[spellings[key]] = value
            elif (promise := cls.known_keys.promise(key)) is None:
                ignored.add(key)
            elif not promise.keeps(str(value).strip(), _texts(cls, values)):
                problem = ConfigError(f"option {_given(given, value)}: {promise.instead}", given)
                problems.append(problem)
        unread = len(problems)
        _read_secrets(cls, options, problems)
        made, found = _validated(cls, options)
        problems += found
        if len(problems) > unread:
            made = None
        if made is not None:
            made._ignored = tuple(sorted(ignored))
        return made


class TraceOptions(Options):
    """The options of a service that emits spans."""

    # Not in RocketMQ: the OTLP receiver of spans: "http://host:port" in plaintext, else with TLS.
    # Empty: no spans.
    otlp_endpoint: Receiver = ""
    otlp_header: SecretStr = SecretStr("")  # "name:value,name:value"
    otlp_header_file: str = ""

    @property
    def secrets(self) -> set[str]:
        return super().secrets | set(pairs_of(self.otlp_header.get_secret_value()).values())

    @field_validator("otlp_header")
    @classmethod
    def _otlp_headers(cls, value: SecretStr) -> SecretStr:
        metadata_of(value.get_secret_value())
        return value


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
    Raises ConfigError with all problems, for example if `sets` repeats a key.
    """
    fields = model.keys()
    notes: list[str] = []
    problems: list[ConfigError] = []

    def known(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the field name and the value of each pair. Yield other keys unchanged."""
        for given, value in pairs:
            key = model.known_key(given) or given
            if key != given:
                notes.append(f"{given} is read as {key}")
            yield fields.get(key, key), value

    entries, unreadable = read_file(file) if file else ([], [])
    in_file = list(known((entry.key, entry.value) for entry in entries))
    counts = Counter(name for name, _ in in_file)
    notes += [
        f"{_shown(model, name)} stands in the file {count} times: the last one counts"
        for name, count in counts.items()
        if count > 1
    ]
    layers: list[Mapping[str, Any]] = [
        dict(in_file),
        _from_environment(model, environ or {}),
        _each_once(model, known(_pairs(sets, problems)), problems),
        dict(known((key, value) for key, value in (cli or {}).items() if value is not None)),
    ]
    places = {
        _shown(model, name): entry
        for (name, _), entry in zip(in_file, entries, strict=True)
        if not any(name in layer for layer in layers[1:])
    }
    values = {key: value for layer in layers for key, value in layer.items()}
    for layer in layers:
        for key, value in _moved(model, layer, values):
            notes.append(f"{key}={value} moves with the option that another source sets")
            values.pop(key, None)
    options = model._checked(values, problems)
    if options is None or problems or unreadable:
        placed = [*unreadable, *(_placed(problem, places) for problem in problems)]
        in_order = [problem for _, problem in sorted(placed, key=itemgetter(0))]
        raise ConfigError.joined(in_order, str(file) if file else "the options")
    options._misspelt = tuple(_misspelt(model, environ or {}))
    options._notes = tuple(notes)
    sources: tuple[Source, ...] = ("file", "environment", COMMAND_LINE, COMMAND_LINE)
    options._sources = {
        name: source for source, layer in zip(sources, layers, strict=True) for name in layer
    }
    return options


def read_file(path: Path) -> tuple[list[Entry], list[tuple[int, ConfigError]]]:
    """Read keys and values, in order, from a JSON object or from key=value lines.

    A line that starts with # or ! is a comment. A key that occurs twice is returned twice. Also
    return an error for each other line, after its number. Raises ConfigError if there is no such
    file, or if it is not valid JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"cannot read the configuration file {path}: {error.strerror}"
        raise ConfigError(problem, str(path)) from None
    if text.lstrip().startswith("{"):
        return _of_json(path, text), []
    entries, unreadable = [], []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            problem = f"{path}:{number}: not a key=value line: {stripped[:60]!r}"
            unreadable.append((number, ConfigError(problem, f"{path}:{number}")))
        else:
            entries.append(Entry(key.strip(), value.strip(), number, f"{path}:{number}"))
    return entries, unreadable


def _of_json(path: Path, text: str) -> list[Entry]:
    try:
        # Load objects as lists of pairs, so that repeated keys are detected.
        content = json.loads(text, object_pairs_hook=list)
    except ValueError as error:
        problem = f"the configuration file {path} is not valid JSON: {error}"
        raise ConfigError(problem, str(path)) from None
    entries, at = [], 0
    for key, value in content:
        # A key with escapes in the file is not found: it gets the line of the key before it.
        at = max(at, text.find(json.dumps(key, ensure_ascii=False), at))
        line = text.count("\n", 0, at) + 1
        entries.append(Entry(str(key), value, line, f"{path}:{line}"))
    return entries


def _placed(problem: ConfigError, places: Mapping[str, Entry]) -> tuple[int, ConfigError]:
    """Return the line of a problem, and the problem with the file and the line in its text.

    A problem of another source than the file comes after all lines.
    """
    entry = places.get(problem.about)
    if entry is None:
        return sys.maxsize, problem
    return entry.line, ConfigError(f"{entry.place}: {problem}", problem.about)


def _each_once(
    model: type[Options], pairs: Iterable[tuple[str, Any]], problems: list[ConfigError]
) -> dict[str, Any]:
    """Return the pairs as a dict. Add a problem for each repeated key."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            key = _shown(model, name)
            given = "" if _SECRET_KEY.search(key) else f" ({values[name]!r}, {value!r})"
            problem = f"--set {key} is given twice{given}: give it once"
            problems.append(ConfigError(problem, key))
        values[name] = value
    return values


def _shown(model: type[Options], name: str) -> str:
    """Return the key of a field as it is spelt in files. Return other names unchanged."""
    info = model.model_fields.get(name)
    return (info.alias if info else None) or name


def _pairs(sets: Iterable[str], problems: list[ConfigError]) -> Iterator[tuple[str, str]]:
    """Yield key and value of each "key=value". Add a problem for each other text."""
    for item in sets:
        key, separator, value = item.partition("=")
        if separator and key.strip():
            yield key.strip(), value.strip()
        else:
            problems.append(ConfigError(f"--set {item!r}: write it as key=value", "--set"))


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


def _texts(model: type[Options], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the given values and the defaults as text, by the keys of the options."""
    names = model.keys()
    given = {names.get(model.known_key(key) or key): value for key, value in values.items()}
    return {
        _shown(model, name): str(given.get(name, info.get_default(call_default_factory=True)))
        for name, info in model.model_fields.items()
    }


def _moved(
    model: type[Options], layer: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the paths of a source that lie below an option that a later source replaces."""
    for key, value in layer.items():
        promise, text = model.known_keys.promise(key), str(value).strip()
        if (
            promise is not None
            and promise.kept_path
            and promise.keeps(text, _texts(model, layer))
            and not promise.keeps(text, _texts(model, values))
        ):
            yield key, text


def _given(key: str, value: object) -> str:
    """Return a key with its value for an error, but without a secret."""
    is_path = key.lower().endswith(_FILE.replace("_", ""))
    return key if _SECRET_KEY.search(key) and not is_path else f"{key}={value!r}"


def _read_secrets(
    model: type[Options], values: dict[str, Any], problems: list[ConfigError]
) -> None:
    """Read the secrets that are in files. `values` are by field name. Add all problems."""
    for name in model.secret_names():
        path = str(values.get(name + _FILE) or "").strip()
        given = values.get(name)
        if not path or isinstance(given, SecretStr):  # that was read before
            continue
        key = _shown(model, name + _FILE)
        if given:
            secret = _shown(model, name)
            problems.append(ConfigError(f"{secret} and {key} are both given: give one", key))
            continue
        try:
            values[name] = read_secret(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            problems.append(ConfigError(f"option {key}: cannot read {path}: {reason}", key))


def read_secret(path: str) -> str:
    """Return the content of a file without the newline at its end. Raises OSError, or ValueError.

    The ValueError is a UnicodeDecodeError.
    """
    text = Path(path).expanduser().read_text(encoding="utf-8")
    return text.removesuffix("\n").removesuffix("\r")


def _normal_path(text: str) -> str:
    return os.path.normpath(Path(text).expanduser()) if text else ""


def unknown_option(key: str, known: list[str]) -> ConfigError:
    """Return an error that names the nearest of the known keys."""
    nearest = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "--print-config shows the keys"
    return ConfigError(f"unknown option {key!r}: {hint}", key)


def _validated(
    model: type[OptionsType], values: Mapping[str, Any]
) -> tuple[OptionsType | None, list[ConfigError]]:
    """Return the options, or None and all problems. `values` are by field name."""
    try:
        return model.model_validate(values), []
    except ConfigError as error:
        return None, list(error.problems)
    except ValidationError as error:
        found = error.errors()
    names = model.keys()
    invalid: dict[str, ConfigError] = {}
    for each in found:
        name = names[str(each["loc"][0])]
        key, text = _shown(model, name), str(each["msg"]).removeprefix("Value error, ")
        invalid.setdefault(name, ConfigError(f"option {_given(key, each['input'])}: {text}", key))
    problems = list(invalid.values())
    mentioned = re.compile("|".join(rf"\b{problem.about}\b" for problem in problems))
    try:
        model.model_validate({name: value for name, value in values.items() if name not in invalid})
    except ConfigError as error:
        problems += [each for each in error.problems if not mentioned.search(str(each))]
    except ValidationError:
        pass  # the default of an invalid option is the name of this host, which is invalid too
    return None, problems
