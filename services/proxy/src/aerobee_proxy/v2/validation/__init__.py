"""What a request must look like, rule by rule, before a broker is asked. Pure.

Each function returns what the rest of the proxy needs of a field, or raises Refused with the code
that the StatusCode table of the public protocol has for that RPC and field.

Stricter than RocketMQ's proxy: a receipt handle must be of the topic and the group of its request;
names that brokers use inside stored messages cannot be user properties.
More lenient: a long poll with little time left is shortened instead of refused.
"""
