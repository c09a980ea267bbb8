"""Find claims of a page that are unfounded while a broker does not answer."""

from __future__ import annotations

import html
import re

_TILE = re.compile(
    r'<dt>([^<]*)</dt><dd class="value"[^>]*>(?:<a [^>]*>)?\s*(0|-1|none|empty)\s*</'
)
_EMPTY = re.compile(r'class="[^"]*\bsoft\b[^"]*">\s*(No [^<]*)<')


def unfounded(page: str) -> list[str]:
    """Return what a page may not claim while a broker is silent: zeros, green, and empty lists.

    An empty list must say whose it is, such as "No job at the brokers that answered.".
    """
    zeros = [f"{title}: {value}" for title, value in _TILE.findall(page)]
    empty = [text for text in map(html.unescape, _EMPTY.findall(page)) if " that " not in text]
    return [*zeros, *empty, *(["a green verdict"] if "state good" in page else [])]
