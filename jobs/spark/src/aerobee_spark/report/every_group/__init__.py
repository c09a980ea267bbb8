"""Report every consumer group, with an overview page."""
