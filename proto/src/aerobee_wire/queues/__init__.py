"""Find the message queues of a topic, and choose one for a message, for proxy and client."""
