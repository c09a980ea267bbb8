"""RocketMQ topics for Spark: the data source `format("rocketmq")` and the dead-letter report.

This module imports nothing: Spark loads the package in short-lived planner processes, and grpc must
not be loaded before Spark's daemon has forked its workers.
"""
