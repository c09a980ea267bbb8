"""Show a report as an HTML page with charts, as tables, and as text in a terminal."""
