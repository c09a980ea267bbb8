"""Write the sources of the documentation site: pages, and a page for each file that they link to.

    python docs/pages.py FOLDER      # `make docs` runs this; the folder must not exist

A page keeps its path. A file that is not a page, such as an example, becomes a page with its text.
A folder becomes a page that lists its files. The links of the pages are changed to match. A link
that leads to nothing is kept, so that the build of the site reports it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = Path("README.md")
IMAGES = (".png", ".svg")
# The language of a file's text, for the colours.
LANGUAGES = {".py": "python", ".proto": "protobuf", ".yml": "yaml"}

_LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")


def sources() -> list[Path]:
    """Return the pages of the repository's root and of docs/, relative to the root."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(page.relative_to(ROOT) for page in pages)


def page_of(file: Path) -> Path:
    """Return the path of the page for a file or folder. All paths are relative to the root."""
    if (ROOT / file).is_dir():
        return file / "index.md"
    if file == HOME:
        return Path("index.md")
    return file if file.suffix in (".md", *IMAGES) else file.with_name(f"{file.name}.md")


def title_of(path: Path) -> str:
    """Return the title of a page, or the name of another file or a folder."""
    if path.suffix != ".md":
        return path.name
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def text_of(file: Path) -> str:
    """Return a page, or the text of a file or a list of a folder's files as a page."""
    if (ROOT / file).is_dir():
        entries = [
            f"- [{title_of(entry)}]({entry.name})\n"
            for entry in sorted((ROOT / file).iterdir())
            if not entry.name.startswith((".", "_"))
        ]
        return f"# {file}\n\n{''.join(entries)}"
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    return f"# {file.name}\n\n```{LANGUAGES.get(file.suffix, 'text')}\n{text}```\n"


class Site:
    """The folder with the sources, and the files that are still to be written there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting = sources()
        self._known = set(self._waiting)

    def write(self) -> None:
        while self._waiting:
            file = self._waiting.pop()
            target = self._folder / page_of(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix in IMAGES:
                shutil.copyfile(ROOT / file, target)
            else:
                text = _LINK.sub(lambda link: self._linked(link, file), text_of(file))  # noqa: B023
                target.write_text(text, encoding="utf-8")

    def _linked(self, link: re.Match[str], file: Path) -> str:
        """Return a link to the page of its target. Write that page later."""
        before, target, after = link.groups()
        folder = file if (ROOT / file).is_dir() else file.parent
        path = (ROOT / folder / target).resolve()
        if "://" in target or not path.exists() or not path.is_relative_to(ROOT):
            return link.group()
        linked = path.relative_to(ROOT)
        if linked not in self._known:
            self._known.add(linked)
            self._waiting.append(linked)
        return f"{before}{os.path.relpath(page_of(linked), page_of(file).parent)}{after}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python docs/pages.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    if folder.exists():
        print(f"error: {folder} exists: remove it, or name another folder", file=sys.stderr)
        return 2
    Site(folder).write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
