"""Read without a listener: pulled messages wait until the caller polls for them."""
