"""The message queues of a topic and the choice of one for a message, for proxy and client."""
