"""Loads structlog without rich, which it would import where it is installed, for consoles.

No service writes to one: rich would be 5 MB of each process and 40 ms of its start. The package of
each service imports this first. Not the chassis' own: a relay (`shared_port`) does without both.
"""

import sys

if not {"structlog", "rich"} & sys.modules.keys():
    sys.modules["rich"] = None  # type: ignore[assignment]  # importing it fails now
    import structlog  # noqa: F401

    del sys.modules["rich"]
