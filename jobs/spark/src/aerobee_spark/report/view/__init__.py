"""Views of a report: page, charts, tables, terminal."""
