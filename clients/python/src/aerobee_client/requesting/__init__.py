"""Request and reply: a message whose producer waits for what a consumer replies."""
