"""Request and reply: send a message whose producer waits for the reply of a consumer."""
