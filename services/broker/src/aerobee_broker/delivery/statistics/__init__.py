"""Statistics of the broker, its topics and its groups: lists with counters, and history."""
