"""Import structlog without rich, which structlog would import for tracebacks on a console.

Services show plain tracebacks. Rich would take 5 MB of each process and 40 ms of its start. The
package of each service imports this module first. The chassis package itself does not, because the
program that makes a certificate (`tls_port.self_signed`) imports neither structlog nor rich.
"""

import sys

if not {"structlog", "rich"} & sys.modules.keys():
    sys.modules["rich"] = None  # type: ignore[assignment]  # importing it fails now
    import structlog  # noqa: F401

    del sys.modules["rich"]
