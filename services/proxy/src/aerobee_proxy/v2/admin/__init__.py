"""The service apache.rocketmq.v2.Admin, on a port of its own."""
