"""Prepare docstrings for the API reference: an extension of griffe, which mkdocs.yml names.

It does what help() or a reader of the source sees, but griffe does not:

- The text of a section `Example:` is code.
- A comment above or beside an option or a member of an enum describes it.
- `send = blocking(AsyncProducer.send)` is a method with the signature and the docstring of
  `AsyncProducer.send` (see `aerobee_client.runtime.facade`).
"""

from __future__ import annotations

import ast
import copy
import re
import textwrap
from typing import Any

import griffe

# The functions of aerobee_client.runtime.facade that make a method of another one.
MAKERS = ("blocking", "on_loop", "settled", "like")

_EXAMPLE = re.compile(r"^Example:\n((?:(?: +.*)?\n)+(?: +.*)?| +.*)", re.MULTILINE)


def with_code(docstring: str) -> str:
    """Return a docstring with its example as a fenced block."""

    def fenced(found: re.Match[str]) -> str:
        code = textwrap.dedent(found.group(1)).strip("\n")
        if not code or "```" in code or _is_prose(code):
            return found.group()
        return "Example:\n" + textwrap.indent(f"```python\n{code}\n```", "    ") + "\n"

    return _EXAMPLE.sub(fenced, docstring)


def _is_prose(code: str) -> bool:
    try:
        ast.parse(f"async def example():\n{textwrap.indent(code, '    ')}")
    except SyntaxError:
        return True
    return False


def comment_of(lines: list[str], number: int) -> str:
    """Return the comment at the end of line `number`, or else that on the lines before it.

    Numbers count from 1.
    """
    if beside := lines[number - 1].partition("  # ")[2]:
        return "" if beside.startswith(("noqa", "type:")) else beside
    block: list[str] = []
    for line in reversed(lines[: number - 1]):
        comment = line.strip()
        if not comment.startswith("#"):
            break
        block.insert(0, comment.lstrip("# "))
    return " ".join(block)


class Docstrings(griffe.Extension):  # type: ignore[misc]  # griffe is installed for `make docs` only
    """Changes the objects of our packages when griffe has read them."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_code(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        if attr.docstring or not attr.parent.is_class or attr.lineno is None:
            return
        if comment := comment_of(attr.lines_collection[attr.filepath], attr.lineno):
            attr.docstring = griffe.Docstring(comment, parent=attr)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        for found in classes(pkg):
            for name, member in list(found.members.items()):
                original = original_of(member, loader)
                if original is None:
                    continue
                if member.is_function:  # @like(original)
                    member.docstring = original.docstring
                    continue
                method = copy.copy(original)
                method.labels = set(original.labels) - {"async"}
                found.set_member(name, method)


def classes(module: griffe.Object) -> list[griffe.Class]:
    """Return the classes of a module and of the modules in it."""
    found = []
    for member in module.members.values():
        if not member.is_alias and member.is_class:
            found.append(member)
        elif not member.is_alias and member.is_module:
            found += classes(member)
    return found


def original_of(member: griffe.Object, loader: griffe.GriffeLoader) -> griffe.Function | None:
    """Return the method of which a member is made, or None if a member is not made of another."""
    if member.is_alias:
        return None
    if member.is_attribute:
        calls = [member.value]
    elif member.is_function:
        calls = [decorator.value for decorator in member.decorators]
    else:
        return None
    for call in calls:
        if isinstance(call, griffe.ExprCall) and str(call.function) in MAKERS:
            owner, _, name = call.arguments[0].canonical_path.rpartition(".")
            made_of = loader.modules_collection[owner].all_members[name]
            return made_of.final_target if made_of.is_alias else made_of
    return None
