"""Replace this process by a service, for commands that run one."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click


def inherit_namesrv(context: click.Context) -> None:
    """Pass the option --namesrv of `aerobee` itself to the service, by NAMESRV_ADDR."""
    inherited = context.find_root().params.get("namesrv")
    if inherited:
        os.environ["NAMESRV_ADDR"] = inherited


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by `python -m MODULE ARGUMENT…`."""
    if importlib.util.find_spec(module) is None:
        print(f"error: {_missing(module)}", file=sys.stderr)
        raise click.exceptions.Exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def _missing(module: str) -> str:
    """Return what to do if a module is not installed. The image has everything but the report."""
    if module == "aerobee_spark":
        return (
            "the report and the facts need aerobee-spark, which is not installed here: "
            "pip install 'aerobee-spark[local]', on any machine that reaches the services; "
            "with Docker Compose: docker compose --profile spark run --rm report --group GROUP"
        )
    return f"{module} is not installed here: pip install aerobee"
