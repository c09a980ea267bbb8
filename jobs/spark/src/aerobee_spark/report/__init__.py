"""The dead-letter report of a consumer group: facts in Parquet, figures from the facts, pages.

The order of work is in `job.py`. Only `engines/` knows Spark and DuckDB.
"""
