"""Write the tables of RocketMQ's keys into docs/configuration.md, between their marks.

.venv/bin/python docs/keys.py

The tables are those of `rocketmq_keys.toml` beside the `config.py` of each service. `--check` fails
if the page has other ones.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.config import Options
from aerobee_namesrv.config import NamesrvOptions
from aerobee_proxy.config import ProxyOptions

PAGE = Path(__file__).with_name("configuration.md")
SERVICES: Mapping[str, type[Options]] = {
    "broker": BrokerOptions,
    "proxy": ProxyOptions,
    "name server": NamesrvOptions,
}
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"


def _cell(keys: list[str]) -> str:
    return ", ".join(f"`{key}`" for key in sorted(keys, key=str.casefold))


def _refused() -> Iterator[str]:
    yield "| refused key | service | accepted values | why, and what to do |\n|---|---|---|---|\n"
    for service, model in SERVICES.items():
        rows: dict[tuple[str, str], list[str]] = defaultdict(list)
        for key, promise in model.known_keys.promises.items():
            values = promise.kept | {promise.kept_path}
            rows[_cell([value for value in values if value]), promise.instead].append(key)
        for (kept, instead), keys in rows.items():
            yield f"| {_cell(keys)} | {service} | {kept or 'none'} | {instead} |\n"


def _without_effect() -> Iterator[str]:
    yield "| service | no effect, harmless, because … | keys |\n|---|---|---|\n"
    for service, model in SERVICES.items():
        rows: dict[str, list[str]] = defaultdict(list)
        for key, because in model.known_keys.harmless.items():
            rows[because].append(key)
        for because, keys in rows.items():
            yield f"| {service} | {because} | {_cell(keys)} |\n"


TABLES = {"refused keys": _refused, "keys without effect": _without_effect}


def rewritten(page: str) -> str:
    """Return the page with the tables of the code. Raise SystemExit if a mark is missing."""
    for name, rows in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = page.partition(begin)
        _, ends, after = rest.partition(end)
        if not found or not ends:
            raise SystemExit(f"{PAGE.name} lacks the marks: add the lines {begin} and {end}")
        page = f"{before}{begin}\n\n{''.join(rows())}\n{end}{after}"
    return page


def main() -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = rewritten(before)
    if "--check" in sys.argv[1:]:
        if after == before:
            return 0
        print(f"docs/{PAGE.name} differs from the keys: run docs/keys.py", file=sys.stderr)
        return 1
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
