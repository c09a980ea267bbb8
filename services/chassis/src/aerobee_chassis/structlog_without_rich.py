"""Import structlog without rich, which it would otherwise import for consoles.

Services do not write to a console. Rich would take 5 MB of each process and 40 ms of its start. The
package of each service imports this first. The package of the chassis does not, because a relay
(`tls_port`) imports neither.
"""

import sys

if not {"structlog", "rich"} & sys.modules.keys():
    sys.modules["rich"] = None  # type: ignore[assignment]  # importing it fails now
    import structlog  # noqa: F401

    del sys.modules["rich"]
