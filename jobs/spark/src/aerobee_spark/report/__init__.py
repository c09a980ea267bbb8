"""Make the dead-letter report of a consumer group: facts in Parquet, figures, and pages.

The order of work is in `job.py`. Only `engines/` uses Spark and DuckDB.
"""
