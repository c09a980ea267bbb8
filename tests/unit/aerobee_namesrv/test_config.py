"""Options of the name server: facts §8.1, and which of them may change at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_chassis.config import load
from aerobee_chassis.errors import ConfigError
from aerobee_namesrv.config import NamesrvOptions, RuntimeOptions
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
    assert options.ignored_keys == ("clientRequestThreadPoolNums", "configStorePath")


def test_every_key_is_known_in_one_way() -> None:
    assert samples.repeated(NamesrvOptions) == []


@pytest.mark.parametrize("path", samples.taken("namesrv"), ids=lambda path: path.stem)
def test_namesrv_conf_of_a_public_cluster_is_taken(path: Path) -> None:
    assert load(NamesrvOptions, file=path).notes == ()


def test_controller_in_the_name_server_is_refused() -> None:
    with raises_about(ConfigError, "enableControllerInNamesrv"):
        load(NamesrvOptions, file=samples.refused("namesrv", "controller"))


def test_key_in_another_case_may_change_at_run_time() -> None:
    options = RuntimeOptions(NamesrvOptions())
    options.update({"ordermessageenable": "true"})
    assert options.now.order_message_enable


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
def runtime() -> RuntimeOptions:
    return RuntimeOptions(NamesrvOptions())


def test_switch_changes_at_run_time(runtime: RuntimeOptions) -> None:
    runtime.update({"enableTopicList": "false", "supportActingMaster": "true"})
    assert (runtime.now.enable_topic_list, runtime.now.support_acting_master) == (False, True)
    assert runtime.entries()["enableTopicList"] == "false"


@pytest.mark.parametrize("key", sorted(NamesrvOptions.runtime_keys))
def test_every_key_that_may_change_is_a_switch(key: str) -> None:
    field = NamesrvOptions.model_fields[NamesrvOptions.keys()[key]]
    assert field.annotation is bool


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
def test_path_port_unknown_key_and_bad_value_are_refused_at_run_time(
    runtime: RuntimeOptions, key: str, value: str, code: Code
) -> None:
    """§1.8: NO_PERMISSION for what is set at start only."""
    with raises_code(code, key):
        runtime.update({"supportActingMaster": "true", key: value})
    assert runtime.now == NamesrvOptions(), "all or nothing"


def test_entries_are_texts_that_can_be_read_back(runtime: RuntimeOptions) -> None:
    entries = runtime.entries()
    assert entries["listenPort"] == "9876"
    assert NamesrvOptions.from_values(entries) == runtime.now
