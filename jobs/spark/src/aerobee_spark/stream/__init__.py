"""Topics as a stream: `spark.readStream.format("rocketmq")`."""
