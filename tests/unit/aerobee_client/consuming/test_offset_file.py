"""The file of a broadcasting member: RocketMQ's form, atomic, for one consumer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_client.consuming.offset_file import OffsetFile, decode, encode
from aerobee_client.message_queue import MessageQueue
from aerobee_wire.status import Code
from support.codes import raises_code

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 3)

# As a Java client of RocketMQ 4 and 5 writes it.
OF_JAVA = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"orders"
\t\t}:17,{
\t\t\t"brokerName":"broker-b",
\t\t\t"queueId":3,
\t\t\t"topic":"orders"
\t\t}:4611686018427387904
\t}
}"""


def test_a_file_of_rocketmqs_java_client_is_read() -> None:
    assert decode(OF_JAVA) == {A: 17, B: 1 << 62}


def test_it_is_written_in_the_same_form() -> None:
    assert encode({B: 2, A: 1}) == (
        '{"offsetTable":{'
        '{"brokerName":"broker-a","queueId":0,"topic":"orders"}:1,'
        '{"brokerName":"broker-b","queueId":3,"topic":"orders"}:2}}'
    )


@given(
    st.dictionaries(
        st.builds(MessageQueue, st.text(), st.text(), st.integers(0, 1 << 31)),
        st.integers(0, (1 << 63) - 1),
    )
)
def test_what_is_written_is_read(offsets: dict[MessageQueue, int]) -> None:
    assert decode(encode(offsets)) == offsets


def test_other_members_and_quoted_keys_are_understood() -> None:
    quoted = r'"{\"brokerName\":\"broker-a\",\"queueId\":0,\"topic\":\"orders\"}"'
    assert decode(f'{{"dataVersion":{{"counter":1}},"offsetTable":{{{quoted}:5}}}}') == {A: 5}
    assert decode('{"offsetTable":{}}') == {}


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "{",
        '{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:5}',
        '{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:-1}}',
        '{"offsetTable":{{"brokerName":"a","topic":"t"}:5}}',
        '{"offsetTable":{}} and more',
        OF_JAVA[:60],
    ],
)
def test_a_damaged_file_is_refused_and_kept(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(damaged)
    with raises_code(Code.INVALID_PARAMETER):
        OffsetFile(path).open()
    assert path.read_text() == damaged
    path.unlink()
    assert OffsetFile(path).open() == {}, "the refused one holds no lock"


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = OffsetFile(tmp_path / "offsets.json")
    assert file.open() == {}
    file.write({A: 1})
    with file.path.open() as before:
        file.write({A: 2, B: 1})
        assert decode(before.read()) == {A: 1}
    assert decode(file.path.read_text()) == {A: 2, B: 1}


def test_a_second_consumer_is_refused_until_the_first_has_closed(tmp_path: Path) -> None:
    first, second = OffsetFile(tmp_path / "o.json"), OffsetFile(tmp_path / "o.json")
    first.open()
    with raises_code(Code.ILLEGAL_OPERATION):
        second.open()
    first.close()
    first.close()
    assert second.open() == {}


def test_what_a_child_has_inherited_keeps_no_lock(tmp_path: Path) -> None:
    first, second = OffsetFile(tmp_path / "o.json"), OffsetFile(tmp_path / "o.json")
    first.open()
    lock = tmp_path / "o.json.lock"
    (held,) = [each.name for each in Path("/proc/self/fd").iterdir() if each.resolve() == lock]
    inherited = os.dup(int(held))
    first.close()
    assert second.open() == {}
    os.close(inherited)


def test_a_directory_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        OffsetFile(tmp_path / "nowhere" / "offsets.json").open()
