"""Options: sources, precedence, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field, SecretStr, field_validator

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.config import (
    _SECRET_KEY,
    KnownKeys,
    Options,
    Promise,
    TraceOptions,
    load,
    pairs_of,
)
from aerobee_chassis.errors import ConfigError
from aerobee_chassis.runtime_options import RuntimeOptions
from aerobee_namesrv.config import NamesrvOptions
from aerobee_proxy.config import ProxyOptions
from support.codes import raises_about


class Sample(Options):
    known_keys: ClassVar[KnownKeys] = KnownKeys(
        harmless={"sendMessageThreadPoolNums": "there are no threads"},
        promises={
            "tiered*": Promise(frozenset({""}), "there is no tiered storage"),
            "storePathCommitLog": Promise(
                frozenset({""}), "it lies in brokerName", "~/{brokerName}/commitlog"
            ),
            "provider": Promise(frozenset({"org.apache.*"}), "no class of yours is loaded"),
        },
        renamed={"port": "listenPort"},
    )
    environment_aliases: ClassVar[Mapping[str, str]] = {"NAMESRV_ADDR": "namesrv_addr"}

    listen_port: int = Field(default=10911, ge=0, le=65535)
    namesrv_addr: str = ""
    broker_name: str = "broker-a"
    first_port: int = 0
    last_port: int = 10

    @field_validator("namesrv_addr")
    @classmethod
    def _address(cls, value: str) -> str:
        if value == "bad":
            raise ValueError("write host:port")
        return value

    def conflicts(self) -> Iterator[ConfigError]:
        if self.first_port > self.last_port:
            yield ConfigError("firstPort is higher than lastPort", "firstPort")


class Secrets(Options):
    known_keys: ClassVar[KnownKeys] = KnownKeys(
        promises={"storePassword": Promise(frozenset({""}), "there is no store with a password")}
    )
    password: SecretStr = SecretStr("")
    password_file: str = ""

    @field_validator("password")
    @classmethod
    def _short(cls, value: SecretStr) -> SecretStr:
        if len(value.get_secret_value()) > 20:
            raise ValueError("it has over 20 characters")
        return value


def test_secret_comes_from_a_file_without_its_newline(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret word\n")
    options = load(Secrets, sets=[f"passwordFile={file}"])
    assert options.password.get_secret_value() == "s3cret word"
    assert "s3cret word" in options.secrets
    assert "s3cret" not in json.dumps(options.to_json()) + repr(options)
    assert options.to_json()["passwordFile"] == str(file)
    file.unlink()
    again = RuntimeOptions(options).change({})
    assert again.options.password.get_secret_value() == "s3cret word"


@pytest.mark.parametrize("extra", [(), ("password=s3cret",)])
def test_secret_file_that_cannot_be_used_is_refused(tmp_path: Path, extra: tuple[str, ...]) -> None:
    file = f"passwordFile={tmp_path / 'none'}"
    with raises_about(ConfigError, "passwordFile") as caught:
        load(Secrets, sets=(file, *extra))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "sets",
    [
        ("password=s3cret-of-more-than-20",),
        ("password=s3cret", "password=s3cret2"),
        ("storePassword=s3cret",),
    ],
)
def test_error_shows_no_secret(sets: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Secrets, sets=sets)
    assert "assword" in str(caught.value) and "s3cret" not in str(caught.value)


@pytest.mark.parametrize("model", [NamesrvOptions, BrokerOptions, ProxyOptions])
def test_each_secret_may_be_in_a_file(model: type[Options]) -> None:
    names = model.secret_names()
    assert names and {f"{name}_file" for name in names} <= model.model_fields.keys()
    assert all(_SECRET_KEY.search(model.model_fields[name].alias or name) for name in names)


def test_defaults_hold_when_nothing_is_given() -> None:
    assert load(Sample).listen_port == 10911


def test_command_line_wins_over_set_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# ports\nlistenPort=1\nbrokerName = from-file\n")
    environ = {"AEROBEE_LISTEN_PORT": "2", "NAMESRV_ADDR": "a:1", "PATH": "/bin"}
    options = load(
        Sample, file=file, environ=environ, sets=["listenPort=3"], cli={"listen_port": 4}
    )
    assert (options.listen_port, options.broker_name) == (4, "from-file")
    assert options.namesrv_addr == "a:1"
    assert load(Sample, file=file, environ=environ, sets=["listenPort=3"]).listen_port == 3
    assert load(Sample, file=file, environ=environ).listen_port == 2
    assert load(Sample, file=file).listen_port == 1


def test_own_variable_wins_over_the_shared_one() -> None:
    environ = {"AEROBEE_NAMESRV_ADDR": "ours:1", "NAMESRV_ADDR": "shared:1"}
    assert load(Sample, environ=environ).namesrv_addr == "ours:1"


def test_json_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "broker.json"
    file.write_text('{"listenPort": 7}')
    assert load(Sample, file=file).listen_port == 7


def test_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean listenPort\?") as caught:
        load(Sample, sets=["listenPrt=1"])
    assert caught.value.about == "listenPrt"


@pytest.mark.parametrize("key", ["listenport", "ListenPort", "LISTEN_PORT", "PORT"])
def test_key_in_another_case_is_that_key_with_a_note(key: str) -> None:
    options = load(Sample, sets=[f"{key}=7"])
    assert options.listen_port == 7
    assert len(options.notes) == 1
    assert key in options.notes[0]
    assert Sample.from_values({key: 8}).listen_port == 8


def test_case_is_ignored_in_keys_without_effect_and_in_refused_ones() -> None:
    assert load(Sample, sets=["SendMessageThreadPoolNums=4"]).ignored_keys == (
        "sendMessageThreadPoolNums",
    )
    with raises_about(ConfigError, "tieredstoreFilePath"):
        load(Sample, sets=["tieredstoreFilePath=/cold"])


@pytest.mark.parametrize(
    "path",
    ["", "~/b/commitlog", "~/b/commitlog/", "~/b/x/../commitlog", str(Path.home() / "b/commitlog")],
)
def test_a_path_below_another_option_is_taken(path: str) -> None:
    """Files of RocketMQ clusters name the folders that they would have anyway."""
    load(Sample, sets=["broker_name=b", f"storePathCommitLog={path}"])


@pytest.mark.parametrize("path", ["~/broker-b/commitlog", "/elsewhere", "~/b", "~/b/commitlog,/c"])
def test_another_path_is_refused(path: str) -> None:
    with raises_about(ConfigError, "storePathCommitLog"):
        load(Sample, sets=["broker_name=b", f"storePathCommitLog={path}"])


def test_a_path_moves_with_the_option_that_the_command_line_replaces(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\nstorePathCommitLog=~/b/commitlog\n")
    assert load(Sample, file=file).notes == ()
    [note] = load(Sample, file=file, cli={"brokerName": "c"}).notes
    assert "storePathCommitLog" in note
    file.write_text("storePathCommitLog=~/b/commitlog\n")
    with raises_about(ConfigError, "storePathCommitLog"):
        load(Sample, file=file, cli={"brokerName": "c"})


def test_a_kept_value_may_be_a_pattern() -> None:
    load(Sample, sets=["provider=org.apache.Default"])
    with raises_about(ConfigError, "provider"):
        load(Sample, sets=["provider=com.example.Own"])


def test_known_spellings_need_no_note() -> None:
    assert load(Sample, sets=["port=7", "broker_name=b"], cli={"listenPort": 9}).notes == ()


def test_key_in_another_case_yields_to_a_later_source(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("NameSrvAddr=file:1\n")
    options = load(Sample, file=file, environ={"NAMESRV_ADDR": "environment:1"})
    assert options.namesrv_addr == "environment:1"


@pytest.mark.parametrize("second", ["listenPort=2", "listen_port=2", "listenport=2", "port=2"])
def test_option_set_twice_is_refused_with_its_key(second: str) -> None:
    with pytest.raises(ConfigError, match="listenPort is given twice") as caught:
        load(Sample, sets=["listenPort=1", second])
    assert caught.value.about == "listenPort"


@pytest.mark.parametrize(
    "text", ["listenPort=1\nlistenPort=2\n", '{"listenPort": 1, "listenport": 2}']
)
def test_key_twice_in_a_file_counts_once_with_a_note(tmp_path: Path, text: str) -> None:
    """As in Java's Properties: real files have such lines."""
    file = tmp_path / "broker.conf"
    file.write_text(text)
    options = load(Sample, file=file)
    assert options.listen_port == 2
    assert any("listenPort" in note and "2 times" in note for note in options.notes)


def test_keys_without_effect_are_collected() -> None:
    assert load(Sample, sets=["sendMessageThreadPoolNums=4"]).ignored_keys == (
        "sendMessageThreadPoolNums",
    )


@pytest.mark.parametrize(
    ("item", "about"),
    [("listenPort=many", "listenPort"), ("listen_port=70000", "listenPort"), ("=1", "--set")],
)
def test_bad_value_names_the_key(item: str, about: str) -> None:
    with raises_about(ConfigError, about):
        load(Sample, sets=[item])


@pytest.mark.parametrize(
    ("text", "line"), [(None, ""), ("{", ""), ("listenPort=1\nno separator", ":2")]
)
def test_missing_or_broken_file_is_named(tmp_path: Path, text: str | None, line: str) -> None:
    file = tmp_path / "broken.conf"
    if text is not None:
        file.write_text(text)
    with raises_about(ConfigError, f"{file}{line}"):
        load(Sample, file=file)


def problems_of(**given: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(Sample, **given)
    error = caught.value
    assert error.about == error.problems[0].about
    assert all(str(problem) in str(error) for problem in error.problems)
    assert len(str(error).splitlines()) == len(error.problems) + (len(error.problems) > 1)
    return [f"{str(problem).partition(': ')[0]} {problem.about}" for problem in error.problems]


def test_all_problems_of_a_file_are_named_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    lines = ["# ports", "brokerNam=b", "listenPort=many", "", "what", "tieredPath=/x", "first=2"]
    file.write_text("\n".join(lines))
    assert problems_of(file=file) == [
        f"{file}:2 brokerNam",
        f"{file}:3 listenPort",
        f"{file}:5 {file}:5",
        f"{file}:6 tieredPath",
        f"{file}:7 first",
    ]


def test_problems_of_json_have_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "proxy.json"
    file.write_text('{\n  "brokerName": "brokerNam",\n\n  "listenPort": -1, "brokerNam": 2}\n')
    assert problems_of(file=file) == [f"{file}:4 brokerNam", f"{file}:4 listenPort"]


def test_problems_of_all_sources_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerNam=b\nlistenPort=many\n")
    sets = ["first=1", "=2", "second=-1", "first=2"]
    found = problems_of(file=file, sets=sets, environ={"NAMESRV_ADDR": "bad"})
    assert found[0] == f"{file}:1 brokerNam"
    assert found[1] == f"{file}:2 listenPort"
    assert sorted(each.split()[-1] for each in found[2:]) == [
        "--set",
        "first",
        "first",
        "namesrvAddr",
        "second",
    ]


def test_problem_of_a_value_that_wins_over_the_file_has_no_line(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("listenPort=1\n")
    assert problems_of(file=file, sets=["listenPort=x"]) == ["option listenPort='x' listenPort"]


def test_conflict_is_named_beside_invalid_values(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=other\nlistenPort=many\nlastPort=5\nfirstPort=9\n")
    assert problems_of(file=file) == [f"{file}:2 listenPort", f"{file}:4 firstPort"]


def test_conflict_with_an_invalid_value_is_not_named() -> None:
    assert problems_of(sets=["firstPort=9", "lastPort=x"]) == ["option lastPort='x' lastPort"]


def test_printed_configuration_can_be_read_back() -> None:
    options = load(Sample, sets=["listenPort=5"])
    assert Sample.from_values(options.to_json()).to_json() == options.to_json()


def test_misspelt_variable_gets_a_hint() -> None:
    environ = {"AEROBEE_LISTEN_PROT": "2", "AEROBEE_BROKER_HOST": "a", "LISTEN_PROT": "3"}
    options = load(Sample, environ=environ)
    assert options.misspelt_variables == ("AEROBEE_LISTEN_PROT: did you mean AEROBEE_LISTEN_PORT?",)
    assert load(Sample, environ={"AEROBEE_LISTEN_PORT": "2"}).misspelt_variables == ()


# ---- the table of other keys ----

TABLE = """
[[harmless]]
because = '''
no
port'''
keys = '''
brokerIP2
haListenPort
'''

[[harmless]]
because = "no traces"
keys = "traceTopicEnable"

[renamed]
haSlaveFallbehindMax = "haMaxGapNotInSync"

[[refused]]
keys = "aclEnable tiered*"
kept = ["", "false"]
instead = '''
remove
the key'''

[[refused]]
keys = "storePathIndex"
kept = [""]
kept_path = "{root}/index"
instead = "move it"
"""


@pytest.fixture
def keys(tmp_path: Path) -> KnownKeys:
    path = tmp_path / "keys.toml"
    path.write_text(TABLE)
    return KnownKeys.read(path)


def test_table_has_harmless_refused_and_renamed_keys(keys: KnownKeys) -> None:
    assert keys.harmless == {
        "brokerIP2": "no port",
        "haListenPort": "no port",
        "traceTopicEnable": "no traces",
    }
    assert keys.renamed == {"haSlaveFallbehindMax": "haMaxGapNotInSync"}
    assert sorted(keys) == [
        *("aclEnable", "brokerIP2", "haListenPort", "haSlaveFallbehindMax", "storePathIndex"),
        *("tiered*", "traceTopicEnable"),
    ]
    assert keys.promises["storePathIndex"].kept_path == "{root}/index"


@pytest.mark.parametrize("key", ["aclEnable", "tieredStoreFilePath", "TieredStoreFilePath"])
def test_refused_key_says_which_values_are_taken_and_what_to_do(keys: KnownKeys, key: str) -> None:
    assert keys.promise(key) == (frozenset({"", "false"}), "remove the key", "")


@pytest.mark.parametrize("key", ["brokerIP2", "haSlaveFallbehindMax", "listenPort"])
def test_other_keys_promise_nothing(keys: KnownKeys, key: str) -> None:
    assert keys.promise(key) is None


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("metricsLabel", {"metricsLabel": "zone"}),
        ("metricsLabel", {"metricsLabel": "node_id:b"}),
        ("metricsLabel", {"metricsLabel": "no-name:b"}),
        ("metricsGrpcExporterHeader", {"metricsGrpcExporterHeader": "token"}),
        ("metricsGrpcExporterHeader", {"metricsGrpcExporterHeader": "a token:x"}),
        ("metricsGrpcExporterHeader", {"metricsGrpcExporterHeader": "token-bin:x"}),
        ("metricsGrpcExporterHeader", {"metricsGrpcExporterHeader": "token:grün"}),
        ("metricsGrpcExporterTarget", {"metricsExporterType": "OTLP_GRPC"}),
        ("metricsInDelta", {"metricsExporterType": "PROM", "metricsInDelta": "true"}),
    ],
)
def test_exporters_of_metrics_refuse_what_they_cannot_do(key: str, values: dict[str, str]) -> None:
    with raises_about(ConfigError, key):
        Options.from_values(values)


@pytest.mark.parametrize("key", ["otlpEndpoint", "metricsGrpcExporterTarget"])
def test_a_receiver_of_otlp_has_a_port(key: str) -> None:
    for good in ("", "http://collector:4317", "HTTPS://[::1]:4317/", "collector:4317"):
        TraceOptions.from_values({key: good})
    for bad in (
        "http://collector",
        "collector",
        "http://collector:",
        "http://collector:0",
        "http://collector:65536",
        "http://:4317",
        "http://collector:4317/v1/traces",
        "grpc://collector:4317",
        "::1:4317",
    ):
        with raises_about(ConfigError, key):
            TraceOptions.from_values({key: bad})


def test_labels_of_metrics_are_pairs() -> None:
    assert pairs_of(" zone:a, room : b:c ,") == {"zone": "a", "room": "b:c"}
    header = Options.from_values({"metricsGrpcExporterHeader": "token:x"})
    assert "x" not in str(header.to_json()["metricsGrpcExporterHeader"])
