"""The engines that make facts and figures: Spark, or a local one without Java. Both give the same.

Each is a function `make`: it writes the facts, and returns the figures and the width in ms of a
bucket of the timeline.
"""
