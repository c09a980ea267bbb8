"""The facts table: messages that were landed in Parquet, each once. Reads and writes files only, on
a disk of this machine or through the Hadoop FileSystem of Spark; knows no brokers.
"""
