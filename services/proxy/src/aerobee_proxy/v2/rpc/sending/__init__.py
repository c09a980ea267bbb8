"""RPCs of producers."""
