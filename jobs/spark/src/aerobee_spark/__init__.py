"""RocketMQ topics for Spark: the data source `format("rocketmq")`, and the dead-letter report.

Nothing is imported here: Spark loads this package in short-lived planner processes, and grpc may
be loaded only after Spark's daemon has forked its workers.
"""
