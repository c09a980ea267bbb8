"""Find Java, start a JVM, and open the Spark session of a report."""
