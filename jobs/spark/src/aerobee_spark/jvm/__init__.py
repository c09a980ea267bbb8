"""The Java and the session that Spark needs."""
