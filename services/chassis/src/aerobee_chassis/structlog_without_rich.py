"""Imports structlog without rich, which it would import for consoles where it is installed.

No service writes to a console: rich would take 5 MB of each process and 40 ms of its start. The
package of each service imports this first. That of the chassis does not: a relay (`tls_port`)
imports neither.
"""

import sys

if not {"structlog", "rich"} & sys.modules.keys():
    sys.modules["rich"] = None  # type: ignore[assignment]  # importing it fails now
    import structlog  # noqa: F401

    del sys.modules["rich"]
