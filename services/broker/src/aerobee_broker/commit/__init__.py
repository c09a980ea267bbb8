"""When what was appended becomes durable, and who waits for it."""
