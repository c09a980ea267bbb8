"""The RPCs of NamesrvService, one file per family. Handlers translate; they do not decide."""
