"""The sources of the documentation site: links between pages stay, other files become pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.repository.tree import docs_script

ADR = "docs/adr"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    for name, text in {
        "README.md": "[use](docs/usage.md#send) [adr](docs/adr) [far](https://host/x.py)",
        "docs/usage.md": "[home](../README.md) [example](../examples/send.py) [none](none.md)",
        f"{ADR}/0001-one.md": "# 1. One",
        "examples/send.py": "send()\n",
        "examples/unlinked.py": "",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    pages = docs_script("pages")
    monkeypatch.setattr(pages, "ROOT", root)
    assert pages.main([str(tmp_path / "site")]) == 0
    return tmp_path / "site"


def test_the_readme_is_the_home_page(site: Path) -> None:
    text = (site / "index.md").read_text(encoding="utf-8")
    assert text == f"[use](docs/usage.md#send) [adr]({ADR}/index.md) [far](https://host/x.py)"


def test_a_linked_file_becomes_a_page_with_its_text(site: Path) -> None:
    text = (site / "docs" / "usage.md").read_text(encoding="utf-8")
    assert text == "[home](../index.md) [example](../examples/send.py.md) [none](none.md)"
    example = (site / "examples" / "send.py.md").read_text(encoding="utf-8")
    assert example == "# send.py\n\n```python\nsend()\n```\n"


def test_a_linked_folder_becomes_a_list_of_its_pages(site: Path) -> None:
    text = (site / "docs" / "adr" / "index.md").read_text(encoding="utf-8")
    assert text == "# docs/adr\n\n- [1. One](0001-one.md)\n"


def test_a_file_that_no_page_links_to_is_left_out(site: Path) -> None:
    assert not (site / "examples" / "unlinked.py.md").exists()
