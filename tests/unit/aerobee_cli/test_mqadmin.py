"""mqadmin's commands: each has a counterpart or a reason, and `aerobee` answers with it."""

from __future__ import annotations

import pytest

from aerobee_cli import main, mqadmin
from aerobee_cli.app import app
from support.repository.tree import docs_script

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
        ("createUser", "authenticationUsersFile"),
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
