"""List the columns of a message by name and kind.

The Spark schema (`schema.py`) and the Arrow schema (`columns.py`) are built from this list. It is a
module of its own so that `schema.py` does not import Arrow. This module does no I/O.
"""

from __future__ import annotations

STRING, INT, LONG, BINARY, TIMESTAMP, STRING_MAP = (
    "string",
    "int",
    "bigint",
    "binary",
    "timestamp",
    "map<string,string>",
)

# name → kind
COLUMNS = {
    "topic": STRING,
    "brokerName": STRING,
    "queueId": INT,
    "queueOffset": LONG,
    # The property UNIQ_KEY, which the producer sets, or offsetMsgId if that property is missing.
    "msgId": STRING,
    # Store host and physical offset, in hex.
    "offsetMsgId": STRING,
    "tags": STRING,
    # Several keys are separated by spaces.
    "keys": STRING,
    "body": BINARY,
    # The size of the whole body in bytes, even if the body is cut or left out.
    "bodySize": INT,
    "flag": INT,
    "sysFlag": INT,
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    # "ip:port"
    "bornHost": STRING,
    "storeHost": STRING,
    "reconsumeTimes": INT,
    "properties": STRING_MAP,
}
# The column of the option includeHeaders: the properties in the form of Kafka's connector.
HEADERS = "headers"
