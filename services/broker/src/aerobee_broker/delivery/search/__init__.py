"""Search: messages of a topic by place, time, tag, key, condition or text. It changes nothing."""
