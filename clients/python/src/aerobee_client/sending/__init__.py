"""Turn messages into Send requests, and retry them on another broker after a failure."""
