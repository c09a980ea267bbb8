"""The dead-letter report of a consumer group: facts in Parquet, figures from the facts, pages.

The order of work is in `job.py`. Only `facts.py` and `figures.py` know Spark.
"""
