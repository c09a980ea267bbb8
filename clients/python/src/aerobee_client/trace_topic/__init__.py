"""Write RocketMQ's message traces to the topic RMQ_SYS_TRACE_TOPIC."""
