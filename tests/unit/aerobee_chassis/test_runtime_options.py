"""Options that change at run time: the allow-list, precedence, and what a restart restores."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, SecretStr

from aerobee_chassis.config import Options, load
from aerobee_chassis.errors import ConfigError
from aerobee_chassis.runtime_options import FixedOption, RuntimeOptions
from support.codes import raises_about


class Sample(Options):
    runtime_keys: ClassVar[frozenset[str]] = frozenset({"hoursKept", "autoCreate"})

    hours_kept: int = Field(default=72, ge=1)
    auto_create: bool = True
    listen_port: int = 1
    key_password: SecretStr = SecretStr("")


def started(tmp_path: Path, text: str = "", *sets: str, **environ: str) -> RuntimeOptions[Sample]:
    file = tmp_path / "sample.conf"
    file.write_text(text)
    return RuntimeOptions(load(Sample, file=file, environ=environ, sets=sets))


def changed(runtime: RuntimeOptions[Sample], *unset: str, **entries: str) -> tuple[str, ...]:
    change = runtime.change(entries, unset)
    runtime.take(change)
    return change.without_effect


def test_a_change_stands_above_file_and_environment(tmp_path: Path) -> None:
    runtime = started(tmp_path, "hoursKept=10\n", AEROBEE_AUTO_CREATE="false")
    assert (runtime.now.hours_kept, runtime.now.auto_create) == (10, False)
    assert changed(runtime, hoursKept="5", autoCreate="true") == ()
    assert (runtime.now.hours_kept, runtime.now.auto_create) == (5, True)
    assert runtime.sources()["hoursKept"] == "run time"
    assert runtime.entries()["hoursKept"] == "5"


def test_a_change_stands_below_the_command_line_and_says_so(tmp_path: Path) -> None:
    runtime = started(tmp_path, "", "hoursKept=10")
    assert changed(runtime, hoursKept="5") == ("hoursKept",)
    assert runtime.now.hours_kept == 10
    assert runtime.saved == {"hoursKept": "5"}, "it is kept for a start without that argument"
    assert runtime.sources()["hoursKept"] == "command line"
    again = started(tmp_path, "", "hoursKept=10")
    assert again.restore(runtime.saved) == ("hoursKept",)
    assert again.now.hours_kept == 10


def test_unset_brings_back_the_value_of_the_start(tmp_path: Path) -> None:
    runtime = started(tmp_path, "hoursKept=10\n")
    changed(runtime, hoursKept="5")
    changed(runtime, "hourskept")
    assert runtime.now.hours_kept == 10
    assert runtime.sources()["hoursKept"] == "file"
    assert runtime.saved == {}
    changed(runtime, "autoCreate")


def test_a_restart_restores_the_changes(tmp_path: Path) -> None:
    runtime = started(tmp_path)
    changed(runtime, hours_kept="5")
    again = started(tmp_path)
    assert again.restore(runtime.saved) == ()
    assert again.now == runtime.now
    assert again.restore({**runtime.saved, "listenPort": "7"}) == ("listenPort",)
    assert again.now.listen_port == 1


def test_other_options_of_the_start_stay(tmp_path: Path) -> None:
    runtime = started(tmp_path, "keyPassword=secret\nlistenPort=9\n")
    changed(runtime, hoursKept="5")
    assert runtime.now.key_password.get_secret_value() == "secret"
    assert runtime.now.listen_port == 9
    assert "secret" not in str(runtime.entries())


@pytest.mark.parametrize("key", ["listenPort", "listen_port", "keyPassword", "bindAddress"])
def test_a_key_outside_the_list_is_refused(tmp_path: Path, key: str) -> None:
    runtime = started(tmp_path)
    for arguments in (({"hoursKept": "5", key: "2"}, ()), ({"hoursKept": "5"}, (key,))):
        with raises_about(FixedOption, key):
            runtime.change(*arguments)
    assert runtime.now.hours_kept == 72


@pytest.mark.parametrize(
    ("entries", "unset", "about"),
    [
        ({"hoursKept": "0"}, (), "hoursKept"),
        ({"hoursKpt": "5"}, (), "hoursKpt"),
        ({}, ("hoursKpt",), "hoursKpt"),
        ({"hoursKept": "5"}, ("hoursKept",), "hoursKept"),
    ],
)
def test_a_mistake_is_refused_with_its_key(
    tmp_path: Path, entries: dict[str, str], unset: tuple[str, ...], about: str
) -> None:
    with raises_about(ConfigError, about):
        started(tmp_path).change(entries, unset)


def test_a_saved_value_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with raises_about(ConfigError, "hoursKept"):
        started(tmp_path).restore({"hoursKept": "many"})
