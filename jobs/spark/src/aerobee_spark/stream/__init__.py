"""Read topics as a stream: `spark.readStream.format("rocketmq")`."""
