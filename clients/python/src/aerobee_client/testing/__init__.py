"""Provide a real name server, broker and proxy for tests.

They run as a pytest plugin, in a process, or in a container. Importing this package is cheap: a
module is imported when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee_client.testing.container import RocketMqContainer
    from aerobee_client.testing.rocketmq import AsyncRocketMq, RocketMq
    from aerobee_client.testing.suite_process import SuiteProcess

__all__ = ["AsyncRocketMq", "RocketMq", "RocketMqContainer", "SuiteProcess"]

_MODULE_OF = {
    "AsyncRocketMq": "rocketmq",
    "RocketMq": "rocketmq",
    "RocketMqContainer": "container",
    "SuiteProcess": "suite_process",
}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
