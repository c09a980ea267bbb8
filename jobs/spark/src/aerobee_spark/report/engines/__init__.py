"""Run the engine that makes facts and figures: Spark, or a local one without Java.

Both give the same results. Each has a function `make`, which writes the facts and returns the
figures and the width of a bucket of the timeline in milliseconds.
"""
