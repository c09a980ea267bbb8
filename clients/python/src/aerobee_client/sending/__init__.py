"""From a message to a Send request, and to another broker when that fails."""
