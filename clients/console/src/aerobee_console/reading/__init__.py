"""What the pages show, as frozen dataclasses: asked from the brokers, without HTML or HTTP."""
