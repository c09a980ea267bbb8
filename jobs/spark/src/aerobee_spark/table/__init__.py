"""The facts table: messages that were landed in Parquet, each once. Reads and writes files only;
knows neither Spark nor brokers.
"""
