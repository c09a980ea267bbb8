"""Options: sources, precedence, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from aerobee_chassis.config import Options, load
from aerobee_chassis.errors import ConfigError
from support.codes import raises_about


class Sample(Options):
    unsupported_keys: ClassVar[frozenset[str]] = frozenset({"sendMessageThreadPoolNums"})
    environment_aliases: ClassVar[Mapping[str, str]] = {"NAMESRV_ADDR": "namesrv_addr"}

    listen_port: int = Field(default=10911, ge=0, le=65535)
    namesrv_addr: str = ""
    broker_name: str = "broker-a"


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
        load(Sample, sets=["listenport=1"])
    assert caught.value.about == "listenport"


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


@pytest.mark.parametrize(("text", "line"), [(None, ""), ("{", ""), ("a=1\nno separator", ":2")])
def test_missing_or_broken_file_is_named(tmp_path: Path, text: str | None, line: str) -> None:
    file = tmp_path / "broken.conf"
    if text is not None:
        file.write_text(text)
    with raises_about(ConfigError, f"{file}{line}"):
        load(Sample, file=file)


def test_printed_configuration_can_be_read_back() -> None:
    options = load(Sample, sets=["listenPort=5"])
    assert Sample.from_values(options.to_json()) == options


def test_misspelt_variable_gets_a_hint() -> None:
    environ = {"AEROBEE_LISTEN_PROT": "2", "AEROBEE_BROKER_HOST": "a", "LISTEN_PROT": "3"}
    options = load(Sample, environ=environ)
    assert options.misspelt_variables == ("AEROBEE_LISTEN_PROT: did you mean AEROBEE_LISTEN_PORT?",)
    assert load(Sample, environ={"AEROBEE_LISTEN_PORT": "2"}).misspelt_variables == ()
