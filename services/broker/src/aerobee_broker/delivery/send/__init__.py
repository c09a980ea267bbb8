"""From a Send request to the commit log."""
