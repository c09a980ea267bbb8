"""Show a report as page, charts, tables, and in a terminal."""
