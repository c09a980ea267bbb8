"""Whether the log still holds what was written, and its repair from another replica."""
