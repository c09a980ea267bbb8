"""The command line: commands, help, refusals. No network."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from click import Command

from aerobee_cli import main
from aerobee_cli.app import COMMANDS as TOP_COMMANDS
from aerobee_cli.app import app
from aerobee_cli.command_line import CommandGroup, first_sentence
from aerobee_cli.commands.message import body_of, delay_of, properties_of
from aerobee_cli.errors import ProcessEnded
from aerobee_cli.options import BadOption
from aerobee_cli.processes.suite import SuiteOptions
from aerobee_wire.status import Code, MqError

GROUPS = (
    "acl",
    "certs",
    "context",
    "user",
    "quota",
    "audit",
    "topic",
    "group",
    "message",
    "dlq",
    "dlq jobs",
    "lite",
    "lease",
    "delayed",
    "transaction",
    "cluster",
    "broker",
    "broker diverged",
    "broker config",
    "client",
    "namesrv",
    "namesrv config",
    "proxy config",
)
# All commands; users and documents rely on their names.
COMMANDS = {
    "up",
    "namesrv",
    "broker config get",
    "broker config set",
    "broker config unset",
    "namesrv config get",
    "namesrv config set",
    "namesrv config unset",
    "proxy config get",
    "proxy config set",
    "proxy config unset",
    "proxy",
    "broker",
    "console",
    "demo",
    "report",
    "facts",
    "store",
    "export",
    "apply",
    "completion",
    "bench",
    "audit list",
    "audit tail",
    "audit verify",
    "quota set",
    "quota list",
    "quota delete",
    "topic create",
    "topic update",
    "topic rebalance",
    "topic list",
    "topic route",
    "topic status",
    "topic delete",
    "group create",
    "group update",
    "group list",
    "group show",
    "group blocked",
    "group progress",
    "group reset-offset",
    "group clone-offsets",
    "group pause",
    "group resume",
    "group forget",
    "group delete",
    "message send",
    "message consume",
    "message recall",
    "message get",
    "message query",
    "message browse",
    "message search",
    "message tail",
    "message show",
    "message track",
    "dlq list",
    "dlq peek",
    "dlq purge",
    "dlq redrive",
    "dlq export",
    "dlq dismiss",
    "dlq jobs list",
    "dlq jobs show",
    "dlq jobs cancel",
    "lite list",
    "lite show",
    "lite clients",
    "lease list",
    "lease release",
    "delayed list",
    "transaction list",
    "transaction commit",
    "transaction rollback",
    "user create",
    "user update",
    "user rotate",
    "user delete",
    "user list",
    "user get",
    "acl create",
    "acl update",
    "acl delete",
    "acl list",
    "acl get",
    "acl test",
    "acl import",
    "acl export",
    "context add",
    "context list",
    "context show",
    "context use",
    "context remove",
    "certs init",
    "certs issue",
    "certs renew",
    "certs show",
    "cluster list",
    "client list",
    "proxy list",
    "top",
    "doctor",
    "group members",
    "broker status",
    "broker drain",
    "broker ha-status",
    "broker promote",
    "broker diverged list",
    "broker diverged show",
    "broker diverged resend",
}
PASSED_ON = {"console", "report", "facts", "store"}  # the program that they run prints its own help


def tree(group: CommandGroup = app, path: str = "") -> Iterator[str]:
    for name, child in children(group):
        here = f"{path} {name}".strip()
        if here not in GROUPS or here in ("broker", "namesrv"):
            yield here
        if isinstance(child, CommandGroup):
            yield from tree(child, here)


def children(group: CommandGroup) -> Iterator[tuple[str, Command]]:
    for name in group.list_commands(None):
        child = group.get_command(None, name)
        assert child is not None
        yield name, child


@pytest.mark.parametrize("command", [("topic", "route"), ("lite", "list"), ("dlq", "list")])
def test_a_missing_argument_is_an_error_of_the_command_line(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(command) == 2
    assert "Missing argument" in capsys.readouterr().err


def test_every_promised_command_is_there() -> None:
    assert set(tree()) == COMMANDS


def test_the_help_of_aerobee_has_the_first_sentence_of_each_command() -> None:
    found = {name: first_sentence(child.help or "") for name, child in children(app)}
    assert {name: text for name, (_, text) in TOP_COMMANDS.items()} == found


@pytest.mark.parametrize("group", [[], *(name.split() for name in GROUPS)], ids=" ".join)
def test_a_help_cuts_no_sentence(
    group: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main.main([*group, "--help"]) == 0
    _, _, commands = capsys.readouterr().out.partition("\nCommands:\n")
    assert commands and "..." not in commands


@pytest.mark.parametrize("command", sorted(COMMANDS - PASSED_ON))
def test_every_command_has_help_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([*command.split(), "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Example: aerobee {command}" in out or f"aerobee {command} --" in out


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_has_an_example(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*group.split(), "--help"]) == 0
    _, _, examples = capsys.readouterr().out.partition("Example")
    assert f"aerobee {group} " in examples


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("topc list", "did you mean topic?"),
        ("topic craete t", "did you mean create?"),
        ("topic frob t", "there are create, update,"),
        ("broker statsu broker-a", "did you mean status?"),
        ("proxy config gte", "did you mean get?"),
    ],
)
def test_a_mistyped_command_names_the_nearest_one(
    arguments: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one of a service: its name is not an argument of the service itself."""
    assert main.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert not out and hint in err and err.count("\n") == 1


def test_help_shows_the_default_of_a_choice_as_the_user_writes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["up", "--help"]) == 0
    assert "[default: auto]" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["frob"],
        ["topic", "frob"],
        ["topic", "create"],
        ["topic", "route"],
        ["message", "show"],
        ["export"],
        ["topic", "create", "t", "--queues", "0"],
        ["topic", "update"],
        ["topic", "update", "t", "--from", "f"],
        ["topic", "update", "t", "--attribute", "a"],
        ["topic", "update", "t", "--permission", "x"],
        ["topic", "create", "t", "--type", "odd"],
        ["topic", "create", "t", "--lite-ttl", "5"],
        ["topic", "create", "t", "--lite-ttl", "90s"],
        ["topic", "create", "t", "--lite-ttl", "0m"],
        ["topic", "update", "t", "--lite-ttl", "31d"],
        ["group", "create", "g", "--retry-delays", "1s,5"],
        ["group", "create", "g", "--max-attempts", "0"],
        ["group", "create", "g", "--order", "fifo"],
        ["group", "create", "g", "--retry", "1s,5s"],
        ["group", "create", "g", "--retry", "exponential:initial=5"],
        ["group", "create", "g", "--retry", "exponential:maximum=5s"],
        ["group", "create", "g", "--retry", "exponential:multiplier=1.5"],
        ["group", "create", "g", "--retry", "exponential", "--retry-delays", "1s"],
        ["group", "create", "g", "--retry", "exponential:initial=5s,initial=6s"],
        ["group", "create", "g", "--attribute", "a=1", "--attribute", "a=2"],
        ["group", "create", "g", "--lite-topic", "p", "--attribute", "lite.bind.topic=q"],
        ["group", "reset-offset", "g", "t", "--to", "yesterday"],
        ["group", "reset-offset", "g", "t", "--to", "1748736000000000", "--yes"],
        ["message", "send", "t"],
        ["message", "send", "t", "body", "--file", "f"],
        ["message", "send", "t", "body", "--property", "x"],
        ["message", "send", "t", "body", "--property", "x=1", "--property", "x=2"],
        ["message", "send", "t", "body", "--delay", "5s", "--delay-level", "3"],
        ["message", "send", "t", "body", "--rate", "5"],
        ["message", "send", "t", "body", "--count", "0"],
        ["message", "send", "t", "body", "--priority", "-1"],
        ["message", "consume", "t", "--from", "yesterday"],
        ["message", "consume", "t", "--group", "g", "--from", "earliest"],
        ["message", "consume", "t", "--timeout", "5"],
        ["message", "consume", "t", "--lease"],
        ["message", "query", "t"],
        ["message", "query", "t", "--key", "a", "--id", "b"],
        ["dlq", "redrive", "g"],
        ["dlq", "redrive", "g", "--all", "--id", "x"],
        ["dlq", "redrive", "g", "--all", "--since", "174873600"],
        ["dlq", "redrive", "g", "--all", "--since", "1h", "--until", "2h"],
        ["dlq", "redrive", "g", "--all", "--since", "1748736000001", "--until", "1748736000000"],
        ["dlq", "redrive", "g", "--id", "x", "--id", "y", "--limit", "1"],
        ["up", "--namesrv-port", "70000"],
        ["--namesrv", "a:1", "--namesrv", "b:1", "topic", "list"],
        ["topic", "create", "t", "--queues", "4", "--queues", "4"],
        ["message", "send", "t", "body", "--tag", "a", "--tag", "b"],
        ["group", "create", "g", "--consume", "--no-consume"],
        ["group", "create", "g", "--retry-delays", "1s,,5s"],
        ["group", "create", "g", "--retry", "exponential:initial=5s,,max=2h"],
        ["certs", "issue", "d", "--role", "broker", "--name", "b", "--hosts", "a,,b"],
        ["certs", "init", "d", "--hosts", ","],
        ["--context", "prod", "up"],
        ["--context", "prod", "broker"],
        ["--context", "prod", "demo"],
        ["certs", "issue", "d", "--role", "broker"],
        ["context", "use"],
        ["context", "use", "prod", "--none"],
        ["context", "add", "prod"],
        ["context", "add", "prod", "--namesrv", "a:1", "--secret-key-file", "f"],
        ["context", "add", "prod", "--namesrv", "a:1", "--proxy", "a:1;b:2"],
        ["context", "add", "prod", "--namesrv", "a:1", "--tls-ca", "no-such-file"],
        ["demo", "--all", "--messages", "5"],
        ["doctor", "--topic", "t"],
        ["doctor", "--from", "a:1;b:2"],
        ["group", "blocked", "g", "--reason", "no such address"],
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")


def test_lists_and_flags_may_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    lists = ["--property", "a=1", "--property", "b=2", "--key", "a", "--key", "b"]
    flags = ["--json", "--json"]
    assert main.main(["message", "send", "t", "body", *lists, *flags, "--help"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "delete", "t"],
        ["group", "delete", "g"],
        ["group", "reset-offset", "g", "t", "--to", "earliest"],
        ["broker", "promote", "b", "--unclean"],
    ],
)
def test_what_asks_is_not_done_where_there_is_no_terminal(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No server is asked: there is none."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main.main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out and "--yes" in err and err.count("\n") == 1


class DamagedAdmin:
    """Finds nothing: a record that may match is damaged."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def query_messages(self, topic: str, *, damaged: list[MqError], **_: object) -> list[Any]:
        damaged.append(MqError(Code.MESSAGE_CORRUPTED, "broker-a: the record at 7 is damaged"))
        return []


def test_a_query_reports_damaged_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: DamagedAdmin())
    assert main.main(["message", "query", "t", "--key", "k", "--json"]) == 3
    out, err = capsys.readouterr()
    assert out.split() == ["[]"]
    assert "broker-a: the record at 7 is damaged" in err


@pytest.mark.parametrize(
    ("stored", "limit", "note"),
    [(3, 3, ""), (4, 3, "give a higher --limit"), (64, 64, "may be more"), (70, 64, "may be more")],
)
def test_a_query_says_that_its_limit_left_messages_out(
    stored: int,
    limit: int,
    note: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Admin(DamagedAdmin):
        def query_messages(
            self, topic: str, *, damaged: list[MqError], **given: object
        ) -> list[Any]:
            assert given["max_messages"] == min(limit + 1, 64)  # of each of several brokers
            return [{"n": n} for n in range(stored)]

    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: Admin())
    monkeypatch.setattr("aerobee_cli.commands.message.summary", lambda message: message)
    limits = ["--limit", str(limit)]
    assert main.main(["message", "query", "t", "--key", "k", "--json", *limits]) == 0
    out, err = capsys.readouterr()
    assert [each["n"] for each in json.loads(out)] == list(range(min(stored, limit)))
    assert (note in err) if note else not err


def test_a_mistyped_group_is_not_one_that_waits_for_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Admin(DamagedAdmin):
        def get_group(self, group: str, *, silent: list[MqError]) -> None:
            raise MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"no consumer group {group!r}")

    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: Admin())
    assert main.main(["message", "track", "C0000", "--group", "biling"]) == 1
    error = capsys.readouterr().err
    assert "--group biling" in error and "aerobee group list" in error
    assert "create" not in error, "a group that is created now has not consumed the message"


@pytest.mark.parametrize(("omitted", "code"), [({}, 0), ({"b": 5}, 3)])
def test_blocked_message_groups_that_are_not_listed_are_counted(
    omitted: dict[str, int],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Admin(DamagedAdmin):
        def blocked_message_groups(
            self, _: str, *, omitted: dict[str, int], silent: list[MqError]
        ) -> list[Any]:
            omitted.update(found)
            return []

    found = omitted
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: Admin())
    assert main.main(["group", "blocked", "g", "--json"]) == code
    assert ("broker b has 5 more" in capsys.readouterr().err) is bool(omitted)


def test_an_illegal_name_is_refused_without_asking_a_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["dlq", "list", "bad name"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: the group name 'bad name' is illegal") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MqError(Code.TOPIC_NOT_EXIST, "no such topic: create it"), "no such topic: create it"),
        (ProcessEnded("broker: port in use"), "broker: port in use"),
        (FileNotFoundError(2, "No such file or directory", "x"), "x: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("no address"), "no address"),
    ],
)
def test_an_expected_error_is_printed_as_it_is(error: Exception, text: str) -> None:
    assert main.explain(error) == text


def test_an_unexpected_error_names_the_traceback_variable() -> None:
    assert "AEROBEE_TRACEBACK=1" in main.explain(ZeroDivisionError("division by zero"))


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_is_no_error(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: DamagedAdmin())
    monkeypatch.setattr(sys, closed, None)
    assert main.main(["message", "query", "t", "--key", "k"]) == 3


def test_a_long_command_collects_its_garbage_like_other_programs() -> None:
    before = gc.get_threshold()
    with main.collecting_late():
        assert gc.get_threshold()[0] == main.YOUNG_OBJECTS
        kept: list[list[int]] = [[] for _ in range(main.YOUNG_OBJECTS + 1_000)]
        assert gc.get_threshold() == before, f"there are {len(kept):,} objects"
    assert gc.get_threshold() == before


def test_the_threshold_of_a_command_ends_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    before, callbacks = gc.get_threshold(), len(gc.callbacks)
    assert main.main(["--version"]) == 0
    assert (gc.get_threshold(), len(gc.callbacks)) == (before, callbacks)


def test_the_command_loads_nothing_slow_before_it_runs() -> None:
    """So that `aerobee up` starts its children at once."""
    program = (
        "import sys; from aerobee_cli import app, main; from aerobee_cli.processes import suite; "
        "print(*sorted({'grpc', 'rich', 'aerobee_client.message', 'aerobee_broker',"
        " 'google.protobuf', 'pydantic'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert shown.stdout.decode().split() == []


def test_no_command_loads_pydantic_or_rich() -> None:
    """They are a third of the time of a short command."""
    program = (
        "import pkgutil, sys; from importlib import import_module;"
        "from aerobee_cli import commands;"
        "[import_module(f'aerobee_cli.commands.{each.name}')"
        " for each in pkgutil.iter_modules(commands.__path__)];"
        "from aerobee_client import AdminClient, Producer, AsyncPullConsumer;"
        "print(*sorted({'pydantic', 'rich', 'typer'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert shown.stdout.decode().split() == []


def test_help_loads_no_command() -> None:
    program = (
        "import sys; from aerobee_cli import main; main.main(['--help']); "
        "print(*(name for name in sys.modules if name.startswith('aerobee_c')), file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert set(shown.stderr.decode().split()) == {
        "aerobee_cli", "aerobee_cli.app", "aerobee_cli.command_line", "aerobee_cli.errors",
        "aerobee_cli.main",
    }  # fmt: skip


def test_a_body_comes_from_the_command_line_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff")
    assert body_of("grüße", None) == "grüße".encode()
    assert body_of(None, file) == b"\x00\xff"
    with pytest.raises(BadOption):
        body_of(None, tmp_path / "missing")


def test_the_value_of_a_property_may_hold_an_equals_sign() -> None:
    assert properties_of(["formula=a=b", "empty="]) == {"formula": "a=b", "empty": ""}


@pytest.mark.parametrize("given", [["a=1", "a=2"], ["a=1", "a=1"], ["a"], ["=1"]])
def test_a_property_is_given_once_with_name_and_value(given: list[str]) -> None:
    with pytest.raises(BadOption, match="--property"):
        properties_of(given)


def test_a_delay_is_left_to_the_clock_of_the_broker() -> None:
    assert delay_of("1h") == timedelta(hours=1)
    assert delay_of(None) is None
    with pytest.raises(BadOption):
        delay_of("soon")


def test_sets_go_to_the_service_that_they_name() -> None:
    sets = ("flushDiskType=ASYNC_FLUSH", "namesrv.logLevel=debug", "broker.brokerName=b.c")
    options = SuiteOptions(Path("d"), 0, 1, sets)
    assert options.namesrv_arguments() == ["--port", "0", "--data", "d", "--set", "logLevel=debug"]
    assert options.broker_arguments() == [
        *("--port", "1", "--data", "d"),
        *("--set", "flushDiskType=ASYNC_FLUSH", "--set", "brokerName=b.c"),
    ]
