"""Write messages into a facts table, each message once, with a streaming job."""
