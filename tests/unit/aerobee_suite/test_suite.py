"""Test the options of a suite, and the disk of its broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.disk import replace_file
from aerobee_chassis.errors import ConfigError
from aerobee_suite.broker_runner import MortalDisk
from aerobee_suite.options import Places, read
from support.codes import raises_about

# ---- test mortal disk ----
#
# A disk whose process was killed: what was written stays, nothing is added.


def test_a_dead_disk_writes_nothing(tmp_path: Path) -> None:
    disk = MortalDisk()
    path = tmp_path / "log"
    file = disk.open(path, create=True)
    file.pwrite(b"before", 0)
    disk.die()
    file.pwrite(b"after!", 0)
    file.truncate(0)
    file.allocate(0, 100)
    file.sync()
    assert file.pread(100, 0) == b"before"
    file.close()
    disk.remove(path)
    disk.rename(path, tmp_path / "other")
    disk.make_directory(tmp_path / "folder")
    replace_file(disk, tmp_path / "table.json", b"{}")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"log": b"before"}


def test_its_lock_is_free_once_it_is_closed(tmp_path: Path) -> None:
    first, second = MortalDisk(), MortalDisk()
    lock = first.lock(tmp_path / "lock")
    assert lock is not None and second.lock(tmp_path / "lock") is None
    first.die()
    lock.close()
    assert second.lock(tmp_path / "lock") is not None


# ---- test options ----
#
# Options of a suite: which service gets what.


def test_each_service_gets_its_own_options(tmp_path: Path) -> None:
    places = Places(data=tmp_path, host="::1", namesrv_port=1, broker_port=2, proxy_port=3)
    sets = ["brokerName=b", "namesrv.orderMessageEnable=true", "proxy.tlsServerMode=disabled"]
    options = read(places, sets, {})
    assert (options.namesrv.listen_port, options.namesrv.order_message_enable) == (1, True)
    assert (options.broker.listen_port, options.broker.broker_name) == (2, "b")
    assert (options.proxy.grpc_server_port, options.proxy.tls_server_mode) == (3, "disabled")
    assert {each.bind_address for _, each in options.each()} == {"::1"}
    assert options.broker.store_path_root_dir == tmp_path / "broker" / "store"
    assert options.namesrv.kv_config_path == tmp_path / "namesrv" / "kvConfig.json"


def test_the_environment_reaches_each_service() -> None:
    environ = {"AEROBEE_BIND_ADDRESS": "0.0.0.0", "AEROBEE_BROKER_NAME": "b"}
    options = read(Places(insecure=True), [], environ)
    assert {each.bind_address for _, each in options.each()} == {"0.0.0.0"}
    assert options.broker.broker_name == "b"


@pytest.mark.parametrize(
    ("setting", "about"),
    [
        ("brokerNmae=b", "brokerNmae"),
        ("proxy.brokerName=b", "brokerName"),
        ("namesrv.listenPort=x", "listenPort"),
        ("testControl=true", "testControl"),
    ],
)
def test_an_option_that_the_service_does_not_have_is_refused(setting: str, about: str) -> None:
    with raises_about(ConfigError, about):
        read(Places(), [setting], {})
