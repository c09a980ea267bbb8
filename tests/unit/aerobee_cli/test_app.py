"""Test the tree of commands: version, completion, and the answers to names of mqadmin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_cli import main, mqadmin
from aerobee_cli.app import app, commit
from support.repository.tree import ROOT, docs_script

# ---- test commit ----
#
# The commit that `aerobee --version` shows: the build's, the checkout's, and never another one.


def test_a_wheel_shows_the_commit_of_its_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "commit.txt").write_text("0123456789ab-dirty")
    monkeypatch.setattr("aerobee_cli.app.BUILT_FROM", tmp_path / "commit.txt")
    assert commit() == "0123456789ab-dirty"


def test_a_checkout_shows_its_commit() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert len(commit()) >= 12 and head.startswith(commit())


def test_a_package_below_another_checkout_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment in the folder of a project: its commit is not ours."""
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "aerobee_cli"
    site.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "env")], check=True)
    monkeypatch.setattr("aerobee_cli.app.HERE", site)
    monkeypatch.setattr("aerobee_cli.app.BUILT_FROM", site / "commit.txt")
    assert commit() == ""


# ---- test completion ----
#
# `aerobee completion`: a script for each shell, which bash runs here.


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"_AEROBEE_COMPLETE={shell}_complete" in script(shell, capsys)


def test_another_shell_is_refused() -> None:
    assert main.main(["completion", "cmd"]) == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["aerobee", "gro"], {"group"}),
        (["aerobee", "broker", "config", ""], {"get", "set", "unset"}),
        (["aerobee", "topic", "create", "--que"], {"--queues"}),
    ],
)
def test_bash_completes_commands_and_options(
    words: list[str], found: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = tmp_path / "aerobee"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aerobee_cli "$@"\n')
    program.chmod(0o755)
    typed = " ".join(f'"{word}"' for word in words)
    lines = (
        script("bash", capsys),
        f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}",
        "_aerobee_completion aerobee",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        timeout=60,
        check=True,
    )
    assert set(done.stdout.split()) == found


# ---- test mqadmin ----
#
# mqadmin's commands: each has a counterpart or a reason, and `aerobee` answers with it.


# What `mqadmin` of RocketMQ 5.5 lists without arguments (MQAdminStartup.initCommand).
_NAMES = """
createUser updateUser deleteUser getUser listUser copyUser createAcl updateAcl deleteAcl getAcl
listAcl copyAcl updateTopic updateTopicList updateTopicPerm deleteTopic topicList topicRoute
topicStatus topicClusterList updateOrderConf allocateMQ updateStaticTopic remappingStaticTopic
updateBrokerConfig getBrokerConfig brokerStatus brokerConsumeStats sendMsgStatus cleanExpiredCQ
cleanUnusedTopic deleteExpiredCommitLog resetMasterFlushOffset getBrokerEpoch
updateColdDataFlowCtrGroupConfig removeColdDataFlowCtrGroupConfig getColdDataFlowCtrInfo
setCommitLogReadAheadMode clusterList clusterRT producerConnection consumerConnection producer
consumerProgress consumerStatus updateSubGroup updateSubGroupList deleteSubGroup getConsumerConfig
setConsumeMode startMonitoring resetOffsetByTime skipAccumulatedMessage cloneGroupOffset
queryMsgById queryMsgByKey queryMsgByUniqueKey queryMsgByOffset queryMsgTraceById printMsg
printMsgByQueue sendMessage consumeMessage checkMsgSendRT dumpCompactionLog queryCq
checkRocksdbCqWriteProgress updateKvConfig deleteKvConfig updateNamesrvConfig getNamesrvConfig
wipeWritePerm addWritePerm haStatus getSyncStateSet getControllerMetaData getControllerConfig
updateControllerConfig electMaster cleanBrokerMetadata addBroker removeBroker statsAll
exportMetadata exportConfigs exportMetrics exportMetadataInRocksDB rocksDBConfigToJson
exportPopRecord
"""
REGISTERED = tuple(_NAMES.split())


def test_each_command_of_mqadmin_is_known_once() -> None:
    assert len(REGISTERED) == 89
    assert sorted(name for each in mqadmin.COMMANDS.values() for name in each) == sorted(REGISTERED)


@pytest.mark.parametrize("name", REGISTERED)
def test_a_counterpart_is_a_command_or_a_reason(name: str) -> None:
    counterpart = mqadmin.BY_NAME[name]
    assert counterpart.commands or counterpart.note
    for command in counterpart.commands:
        found = app
        for word in command.split():
            if word.startswith("--") or (command == "store dump" and word == "dump"):
                break  # an option; `aerobee store` has a parser of its own
            found = found.get_command(None, word)  # type: ignore[assignment]
            assert found is not None, command


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("updateTopic", "`aerobee topic create` or `aerobee topic update`"),
        ("updatetopic", "`aerobee topic create`"),
        ("haStatus", "`aerobee broker ha-status`"),
        ("setConsumeMode", "a client chooses"),
    ],
)
def test_aerobee_answers_with_ours(
    name: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([name, "-t", "orders"]) == 2
    assert ours in capsys.readouterr().err


def test_another_unknown_command_has_no_such_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["updateEverything"]) == 2
    assert "mqadmin" not in capsys.readouterr().err


def test_the_page_has_the_table() -> None:
    script = docs_script("mqadmin")
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.rewritten(page) == page, "run docs/mqadmin.py"
    assert all(f"| `{name}` |" in page for name in REGISTERED)
