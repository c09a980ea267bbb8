"""The marks of secrets and bodies are found wherever a service may not write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.running import canary

RESERVED = 8 << 20  # bytes


def written(folder: Path, name: str, mark: str, *, at: int = 100) -> Path:
    """Return the folder, with a reserved file that has a mark."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(RESERVED)
        file.seek(at)
        file.write(mark.encode())
    return folder


@pytest.mark.parametrize("at", [0, 4_090, RESERVED // 2 + 4_090, RESERVED - 100])
@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("config/topics.json", canary.SECRET),
        ("commitlog/0", canary.SECRET),
        ("config/topics.json", canary.BODY),
        ("accessTable.json", canary.BODY),
    ],
)
def test_a_mark_in_a_file_is_found(tmp_path: Path, name: str, mark: str, at: int) -> None:
    with pytest.raises(AssertionError, match=name):
        canary.check_files(written(tmp_path, name, mark, at=at))


def test_marks_may_be_where_they_belong(tmp_path: Path) -> None:
    written(tmp_path, "config/accessTable.json.new", canary.SECRET)
    written(tmp_path, "commitlog/0", canary.BODY)
    (tmp_path / "empty").touch()
    canary.check_files(tmp_path)


def test_a_mark_in_a_text_is_found() -> None:
    for mark in (canary.SECRET, canary.BODY):
        with pytest.raises(AssertionError, match="the log"):
            canary.check_text(f"one\ntwo {mark}\n", "the log")
    canary.check_text(canary.BODY, "a message", bodies=True)
    canary.check_text("nothing", "the log")
