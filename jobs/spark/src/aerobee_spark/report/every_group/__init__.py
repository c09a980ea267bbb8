"""Reports on every consumer group, and a page above them."""
