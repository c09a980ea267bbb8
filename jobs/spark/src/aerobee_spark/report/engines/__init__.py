"""Write the facts and compute the figures of a report, with Spark or with a local engine.

The local engine does not need Java. Both engines give the same results. Each has a function `make`,
which writes the facts, and returns the figures and the bucket width of the timeline.
"""
