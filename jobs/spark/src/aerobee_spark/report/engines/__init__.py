"""Write the messages of a report and compute its figures, with Spark or with a local engine.

The local engine does not need Java. Both engines give the same results. Each has a function `make`,
which writes the messages to Parquet files (facts), and returns the figures and the bucket width of
the timeline.
"""
