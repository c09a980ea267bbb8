"""The prose check finds words and forms to avoid, and skips code."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.repository.tree import docs_script

prose = docs_script("prose")


def lines_with_problems(folder: Path, name: str, text: str) -> list[int]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return [problem.line for problem in prose.check(path)]


@pytest.mark.parametrize("phrase", sorted(prose.PHRASES))
def test_each_phrase_is_found_in_a_page(tmp_path: Path, phrase: str) -> None:
    page = f"# Title\n\nThe broker {phrase.upper()} waits.\n"
    assert lines_with_problems(tmp_path, "page.md", page) == [3]


@pytest.mark.parametrize("word", sorted(prose.FRAGMENTS))
def test_a_docstring_that_begins_with_a_fragment_is_found(tmp_path: Path, word: str) -> None:
    module = f'def f():\n    """{word.capitalize()} the broker returned."""\n'
    assert lines_with_problems(tmp_path, "m.py", module) == [2]


def test_only_the_first_word_of_a_docstring_makes_a_fragment(tmp_path: Path) -> None:
    module = '"""Return what the broker stores as text."""\n# Of no interest here.\nX = "As is"\n'
    assert lines_with_problems(tmp_path, "m.py", module) == []


def test_a_word_that_only_contains_a_phrase_is_allowed(tmp_path: Path) -> None:
    assert lines_with_problems(tmp_path, "page.md", "An untold story of Telltown.\n") == []


def test_a_phrase_is_found_across_two_lines(tmp_path: Path) -> None:
    module = "x = 1\n# The broker waits by and\n# by, and then it stops.\n"
    assert lines_with_problems(tmp_path, "m.py", module) == [2]
    assert lines_with_problems(tmp_path, "page.md", "It waits so\nmany seconds.\n") == [1]


def test_a_negated_noun_is_found_but_existence_may_be_denied(tmp_path: Path) -> None:
    page = "-3 is no offset.\n\nThere is no topic.\n\nIt is no longer\nthere.\n"
    assert lines_with_problems(tmp_path, "page.md", page) == [1]


def test_messages_are_checked_and_single_words_are_data(tmp_path: Path) -> None:
    module = 'def f(n):\n    g("nobody")\n    raise ValueError(f"{n} is no offset")\n'
    assert lines_with_problems(tmp_path, "m.py", module) == [3]


def test_comments_and_later_lines_of_docstrings_are_checked(tmp_path: Path) -> None:
    module = '"""Serve.\n\nNobody waits.\n"""\n\nx = 1  # whoever calls\n'
    assert lines_with_problems(tmp_path, "m.py", module) == [3, 6]


def test_code_in_pages_is_skipped(tmp_path: Path) -> None:
    page = "```sh\necho nobody\n```\n\nThe user `nobody` exists.\n\n~~~\nanew\n~~~\nAnew.\n"
    assert lines_with_problems(tmp_path, "page.md", page) == [10]


def test_the_exit_code_says_whether_problems_were_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("All is well.\n")
    assert prose.main([str(tmp_path)]) == 0
    page.write_text("Nobody waits.\n")
    assert prose.main([str(tmp_path)]) == 1
    assert f"{page}:1: " in capsys.readouterr().out
    assert prose.main([str(tmp_path / "missing")]) == 2


def test_every_path_of_the_list_exists_and_is_clean() -> None:
    assert prose.main([]) == 0
