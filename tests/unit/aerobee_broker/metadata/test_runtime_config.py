"""Options that change while a broker runs: what they affect, and what a restart restores."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from aerobee.broker.v1 import config_pb2 as pb

from aerobee_broker.config import BrokerOptions
from aerobee_broker.metadata.runtime_config import RuntimeConfig
from aerobee_broker.rpc.config import ConfigRpcs
from aerobee_chassis.errors import StartError
from aerobee_wire.status import Code
from support.broker.handlers import FakeCall
from support.broker.harness import Begin, BrokerHarness, InlineWorker
from support.broker.tables import failing_disk
from support.clock.polling import until
from support.codes import raises_about, raises_code


def rpcs(harness: BrokerHarness) -> ConfigRpcs:
    return ConfigRpcs(harness.config, harness.broker.use)


def path_of(harness: BrokerHarness) -> Path:
    return harness.broker._core.environment.path / "config" / "runtime.json"


async def update(harness: BrokerHarness, *unset: str, **entries: str) -> list[str]:
    request = pb.UpdateConfigRequest(entries=entries, unset=unset)
    return list((await rpcs(harness).update_config(request, FakeCall())).without_effect)


async def test_limits_of_messages_change_at_once(harness: BrokerHarness) -> None:
    await update(harness, maxMessageSize="3", timerMaxDelaySec="1", rejectTransactionMessage="true")
    await harness.send("t", b"abc")
    with raises_code(Code.MESSAGE_ILLEGAL, "maxMessageSize"):
        await harness.send("t", b"abcd")
    with raises_code(Code.MESSAGE_ILLEGAL, "timerMaxDelaySec"):
        await harness.send("t", b"a", properties={"TIMER_DELAY_SEC": "2"})
    with raises_code(Code.NO_PERMISSION, "rejectTransactionMessage"):
        await harness.send("t", b"a", properties={"TRAN_MSG": "true", "PGROUP": "p"})
    await update(harness, "maxMessageSize")
    await harness.send("t", b"abcd")


async def test_creation_by_first_use_changes_at_once(harness: BrokerHarness) -> None:
    await update(harness, autoCreateTopicEnable="false", autoCreateSubscriptionGroup="false")
    assert "TBW102" not in harness.announced[-1]
    with raises_code(Code.TOPIC_NOT_EXIST):
        await harness.send("new", b"a")
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await harness.broker.groups.for_client("new")
    await update(harness, "autoCreateTopicEnable", defaultTopicQueueNums="2")
    assert "TBW102" in harness.announced[-1]
    assert (await harness.broker.topics.for_send("new", 8)).queue_count == 2


async def test_retention_and_reports_change_at_once(harness: BrokerHarness) -> None:
    await update(harness, fileReservedTime="2", diskSpaceWarningLevelRatio="91")
    status = harness.broker.report.status()
    assert (status.file_reserved_time_ms, status.disk_full_percent) == (7_200_000, 91)
    assert harness.broker.transaction_checks.reserved_ms == 7_200_000
    [expiry] = harness.store.cleaning.retention.expiries([0], harness.clock.now_ms())
    assert expiry < harness.clock.now_ms() + 28 * 3_600_000


async def test_transaction_checks_change_at_once(harness: BrokerHarness) -> None:
    await update(harness, transactionCheckMax="3", transactionCheckInterval="7000")
    checks = harness.broker.transaction_checks
    assert (checks.max_checks, checks.interval_ms) == (3, 7_000)


async def test_changes_survive_a_restart(begin: Begin, harness: BrokerHarness) -> None:
    await update(harness, maxMessageSize="3", autoCreateTopicEnable="false")
    second = await begin()
    assert second.config.now.max_message_size == 3
    with raises_code(Code.TOPIC_NOT_EXIST):
        await second.send("new", b"a")
    options = {
        option.key: option
        for option in (await rpcs(second).get_config(pb.GetConfigRequest(), FakeCall())).options
    }
    changed = options["maxMessageSize"]
    assert (changed.value, changed.source, changed.changeable) == ("3", "run time", True)
    assert not options["storePathRootDir"].changeable


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("storePathRootDir", Code.NO_PERMISSION),
        ("tlsKeyPath", Code.NO_PERMISSION),
        ("namesrvAddr", Code.NO_PERMISSION),
        ("brokerRole", Code.NO_PERMISSION),
        ("rocketmqHome", Code.NO_PERMISSION),
        ("maxMesageSize", Code.INVALID_PARAMETER),
        ("diskSpaceStopRatio", Code.INVALID_PARAMETER),  # 1: below the other marks
    ],
)
async def test_a_refused_key_changes_nothing(harness: BrokerHarness, key: str, code: Code) -> None:
    with raises_code(code, key):
        await update(harness, maxMessageSize="3", **{key: "1"})
    assert harness.config.now.max_message_size != 3
    assert not path_of(harness).exists()


def test_runtime_keys_name_no_path_address_command_or_secret() -> None:
    """CVE-2023-33246 and CVE-2023-37582: a key of RocketMQ that named a command led to a shell."""
    keys = BrokerOptions.keys()
    for key in BrokerOptions.runtime_keys:
        annotation = str(BrokerOptions.model_fields[keys[key]].annotation)
        assert key == "deleteWhen" or "str" not in annotation.replace("Literal['debug'", ""), key
        assert "Path" not in annotation and "Secret" not in annotation
        assert not key.casefold().endswith(("path", "dir", "addr", "address", "host", "port"))


async def test_a_change_that_cannot_be_written_is_no_change(harness: BrokerHarness) -> None:
    with failing_disk(), raises_code(Code.SYSTEM_ERROR, str(path_of(harness))):
        await update(harness, maxMessageSize="3")
    assert harness.config.now.max_message_size != 3


async def test_change_of_a_caller_that_disconnects_takes_effect(harness: BrokerHarness) -> None:
    """The thread of the writer cannot be cancelled, so the file has the change in any case."""
    writer = harness.broker._core.environment.writer
    assert isinstance(writer, InlineWorker)
    before = writer.calls
    writer.hold()
    change = asyncio.create_task(update(harness, maxMessageSize="3"))
    await until(lambda: writer.calls > before, "the write of the file")
    change.cancel()
    with suppress(asyncio.CancelledError):
        await change
    writer.let_go()
    await until(lambda: harness.config.now.max_message_size == 3, "the change")
    with raises_code(Code.MESSAGE_ILLEGAL, "maxMessageSize"):
        await harness.send("t", b"abcd")


@pytest.mark.parametrize("content", ["nonsense", '{"maxMessageSize":"many"}'])
def test_a_damaged_file_is_named(harness: BrokerHarness, content: str, tmp_path: Path) -> None:
    path = tmp_path / "config" / "runtime.json"
    path.parent.mkdir()
    path.write_text(content)
    environment = harness.broker._core.environment
    config = RuntimeConfig(BrokerOptions(), environment.disk, tmp_path, environment.writer)
    with raises_about(StartError, str(path)):
        config.load()
