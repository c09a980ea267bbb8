"""Which topics, consumer groups and clients there are."""
