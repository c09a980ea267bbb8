"""Options of the name server: facts §8.1, and which of them may change at run time."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from aerobee_chassis.config import load
from aerobee_chassis.errors import ConfigError, StartError
from aerobee_chassis.runtime_config import LocalFile, RuntimeConfig
from aerobee_namesrv.config import NamesrvOptions, runtime_config
from aerobee_wire.status import Code
from support.codes import raises_about, raises_code
from support.configuration import samples


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", 9876),
        ("scanNotActiveBrokerInterval", 5000),
        ("unRegisterBrokerQueueCapacity", 3000),
        ("enableAllTopicList", True),
        ("enableTopicList", True),
        ("orderMessageEnable", False),
        ("returnOrderTopicConfigToBroker", True),
        ("supportActingMaster", False),
        ("notifyMinBrokerIdChanged", False),
        ("deleteTopicWithBrokerRegistration", False),
        ("needWaitForService", False),
        ("waitSecondsForService", 45),
    ],
)
def test_default_is_rocketmqs(key: str, value: object) -> None:
    """§8.1."""
    assert NamesrvOptions().to_json()[key] == value


def test_file_of_rocketmq_is_read_and_ignored_keys_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text(
        "listenPort=19876\nclientRequestThreadPoolNums=8\nconfigStorePath=/x/namesrv.properties\n"
    )
    options = load(NamesrvOptions, file=file)
    assert options.listen_port == 19_876
    assert options.ignored_keys == ("clientRequestThreadPoolNums",)
    assert options.runtime_path == Path("/x/namesrv.properties")


def test_every_key_is_known_in_one_way() -> None:
    assert samples.repeated(NamesrvOptions) == []


@pytest.mark.parametrize("path", samples.taken("namesrv"), ids=lambda path: path.stem)
def test_namesrv_conf_of_a_public_cluster_is_taken(path: Path) -> None:
    assert load(NamesrvOptions, file=path).notes == ()


def test_controller_in_the_name_server_is_refused() -> None:
    with raises_about(ConfigError, "enableControllerInNamesrv"):
        load(NamesrvOptions, file=samples.refused("namesrv", "controller"))


async def test_key_in_another_case_may_change_at_run_time(
    config: RuntimeConfig[NamesrvOptions],
) -> None:
    await config.update({"ordermessageenable": "true"})
    assert config.now.order_message_enable


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "65536"),
        ("scanNotActiveBrokerInterval", "0"),
        ("unRegisterBrokerQueueCapacity", "0"),
        ("metricsExporterType", "JMX"),
    ],
)
def test_value_out_of_range_is_refused(key: str, value: str) -> None:
    with raises_about(ConfigError, key):
        NamesrvOptions.from_values({key: value})


def test_tilde_is_the_home_directory() -> None:
    options = NamesrvOptions.from_values({"kvConfigPath": "~/x.json"})
    assert options.kv_config_path == Path.home() / "x.json"


# ---- at run time ----


@pytest.fixture
def config(tmp_path: Path) -> RuntimeConfig[NamesrvOptions]:
    return runtime_config(options_in(tmp_path))


def options_in(folder: Path, *sets: str) -> NamesrvOptions:
    return load(NamesrvOptions, sets=[f"kvConfigPath={folder / 'kvConfig.json'}", *sets])


async def test_switch_changes_at_run_time(config: RuntimeConfig[NamesrvOptions]) -> None:
    await config.update({"enableTopicList": "false", "supportActingMaster": "true"})
    assert (config.now.enable_topic_list, config.now.support_acting_master) == (False, True)
    assert config.runtime.entries()["enableTopicList"] == "false"


@pytest.mark.parametrize("key", sorted(NamesrvOptions.runtime_keys - {"logLevel"}))
def test_every_key_that_may_change_is_a_switch(key: str) -> None:
    field = NamesrvOptions.model_fields[NamesrvOptions.keys()[key]]
    assert field.annotation is bool


async def test_a_change_survives_a_restart_until_it_is_unset(tmp_path: Path) -> None:
    await runtime_config(options_in(tmp_path)).update({"orderMessageEnable": "true"})
    second = runtime_config(options_in(tmp_path))
    second.load()
    assert second.now.order_message_enable
    await second.update({}, ["orderMessageEnable"])
    third = runtime_config(options_in(tmp_path))
    third.load()
    assert not third.now.order_message_enable


async def test_the_file_may_be_elsewhere(tmp_path: Path) -> None:
    elsewhere = f"configStorePath={tmp_path / 'elsewhere' / 'changes.json'}"
    await runtime_config(options_in(tmp_path, elsewhere)).update({"orderMessageEnable": "true"})
    assert (tmp_path / "elsewhere" / "changes.json").exists()


@pytest.mark.parametrize("content", [b"key=value\n", b'{"enableTopicList":"perhaps"}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    """RocketMQ's configStorePath is a file of properties."""
    path = tmp_path / "runtime.json"
    path.write_bytes(content)
    with raises_about(StartError, str(path)):
        runtime_config(options_in(tmp_path)).load()
    assert path.read_bytes() == content


async def test_a_change_that_cannot_be_written_is_no_change(tmp_path: Path) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "full")

    options = options_in(tmp_path)
    config = RuntimeConfig(options, LocalFile(options.runtime_path, full))
    with raises_code(Code.SYSTEM_ERROR):
        await config.update({"orderMessageEnable": "true"})
    assert not config.now.order_message_enable


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("kvConfigPath", "1", Code.NO_PERMISSION),
        ("kv_config_path", "1", Code.NO_PERMISSION),
        ("listenPort", "1", Code.NO_PERMISSION),
        ("configStorePath", "1", Code.NO_PERMISSION),
        ("rocketmqHome", "1", Code.NO_PERMISSION),
        ("enableTopicLst", "false", Code.INVALID_PARAMETER),
        ("enableTopicList", "perhaps", Code.INVALID_PARAMETER),
    ],
)
async def test_path_port_unknown_key_and_bad_value_are_refused_at_run_time(
    config: RuntimeConfig[NamesrvOptions], key: str, value: str, code: Code
) -> None:
    """§1.8: NO_PERMISSION for what is set at start only."""
    with raises_code(code, key):
        await config.update({"supportActingMaster": "true", key: value})
    assert not config.now.support_acting_master, "all or nothing"


def test_entries_are_texts_that_can_be_read_back(config: RuntimeConfig[NamesrvOptions]) -> None:
    entries = config.runtime.entries()
    assert entries["listenPort"] == "9876"
    assert NamesrvOptions.from_values(entries).to_json() == config.now.to_json()
