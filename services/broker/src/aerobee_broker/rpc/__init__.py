"""The RPCs of the broker, one file per service. Handlers translate; they do not decide."""
