"""Half messages: commit, rollback and check-back."""
