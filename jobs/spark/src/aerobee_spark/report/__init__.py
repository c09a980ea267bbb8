"""Make the dead-letter report of a consumer group: messages in Parquet files, figures, and pages.

`job.py` runs the steps in order. Only `engines/` uses Spark and DuckDB.
"""
