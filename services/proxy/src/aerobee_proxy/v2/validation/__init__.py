"""Validate requests, rule by rule, before a broker is asked. Pure.

Each function returns the value of a field that the rest of the proxy needs. If the field is
invalid, it raises Refused with the code that the StatusCode table of the public protocol has for
that RPC and field.

Stricter than RocketMQ's proxy: a receipt handle must belong to the topic and the group of its
request. Names that brokers use inside stored messages cannot be user properties. More lenient: a
long poll with little time left is shortened instead of refused.
"""
