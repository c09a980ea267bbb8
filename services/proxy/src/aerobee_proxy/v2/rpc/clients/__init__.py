"""RPCs of every client: routes, heartbeats, telemetry."""
