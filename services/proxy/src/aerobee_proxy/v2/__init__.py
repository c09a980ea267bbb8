"""Serve the public protocol apache.rocketmq.v2."""
