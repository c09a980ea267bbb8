"""Escape characters that UTF-8 cannot encode, so that every text of a report can be written.

A JSON body in plain ASCII may have one half of a surrogate pair, such as the body {"name":
"\\ud83d"}. Python decodes it to a text that no file and no terminal accepts. This module does no
I/O.
"""

from __future__ import annotations

from typing import Any


def encodable(value: Any) -> Any:
    r"""Return a value with each half of a surrogate pair escaped, such as \ud83d.

    Args:
        value: a text, or lists and mappings of texts at any depth, also in the names of mappings.
            Other values are unchanged.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(name): encodable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [encodable(each) for each in value]
    return value
