"""The RPCs of NamesrvService, by their callers. Handlers translate; they do not decide."""
