"""Store messages in a facts table, which is a folder of Parquet files with each message once.

The package only reads and writes files, on a local disk or through Spark's Hadoop FileSystem. It
does not connect to brokers.
"""
