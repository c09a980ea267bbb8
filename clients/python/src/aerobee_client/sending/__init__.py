"""Convert messages to Send requests, and retry them on another broker after a failure."""
