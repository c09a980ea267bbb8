"""The public protocol apache.rocketmq.v2."""
