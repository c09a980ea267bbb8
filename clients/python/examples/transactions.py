"""Send a message if, and only if, the program's own transaction is committed."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from aerobee_client import Message, ReceivedMessage, TransactionProducer, TransactionResolution


def check(message: ReceivedMessage) -> TransactionResolution:
    """Answer a broker that does not know how a transaction ended: the database knows it."""
    with sqlite3.connect(database) as connection:
        row = connection.execute("SELECT 1 FROM orders WHERE id = ?", message.keys).fetchone()
    return TransactionResolution.COMMIT if row else TransactionResolution.ROLLBACK


def order(producer: TransactionProducer, number: str, amount: int) -> None:
    message = Message("orders", f"{amount} EUR".encode(), keys=number)
    with producer.transaction(message), sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO orders VALUES (?, ?)", (number, amount))
        if amount < 0:
            raise ValueError("an order costs something")  # both are rolled back
    print(f"order {number} is stored, and consumers see its message")


with TemporaryDirectory() as folder:
    database = Path(folder) / "orders.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, amount INTEGER)")
    with TransactionProducer("order-service", check) as producer:
        order(producer, "4711", 250)
        try:
            order(producer, "4712", -1)
        except ValueError as error:
            print(f"order 4712 is not, nor is its message: {error}")
