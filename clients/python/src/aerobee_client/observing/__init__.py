"""What a client lets others see: interceptors, traces, statistics."""
