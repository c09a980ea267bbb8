"""Users, their policies, and the table in which servers keep both."""
