"""Read and write RocketMQ topics with Spark, and report dead letters.

The data source is `format("rocketmq")`. This module does not import anything, because Spark loads
the package in short-lived planner processes. Besides, grpc must not be loaded before Spark's daemon
has forked its workers.
"""
