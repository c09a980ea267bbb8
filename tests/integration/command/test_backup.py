"""docs/backup.md, "A copy" and "A restore": a copy of the data directory is a backup."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from support.processes.command import Up, aerobee, aerobee_json


def test_a_copy_of_a_stopped_suite_has_everything(tmp_path: Path) -> None:
    data, restored = tmp_path / "data", tmp_path / "restored"
    with Up(data) as up:
        assert aerobee("topic", "create", "orders", namesrv=up.namesrv).returncode == 0
        sent = aerobee_json("message", "send", "orders", "hello", namesrv=up.namesrv)
        assert up.end(signal.SIGTERM) == 0
    shutil.copytree(data, restored, symlinks=True)
    checked = aerobee("store", "check", str(restored))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with Up(restored) as up:
        found = aerobee_json("message", "get", sent["message_id"], namesrv=up.namesrv)
        assert found["body"] == "hello"
        assert up.end(signal.SIGTERM) == 0
