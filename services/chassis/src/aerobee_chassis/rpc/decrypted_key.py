"""Decrypt a private key: `python -m aerobee_chassis.rpc.decrypted_key`.

The program reads JSON with "key" and "password" from stdin, and writes the key to stdout, in PEM
and without a password. It is a separate program, so that a long-running process does not keep the
library (20 MB) in memory. gRPC does not read encrypted keys.
"""

from __future__ import annotations

import json
import subprocess
import sys

TIMEOUT_S = 60.0


def decrypted(key: bytes, password: str) -> bytes:
    """Return a key in PEM without a password, by a process of its own.

    Raises OSError if the process fails. The password is one that OpenSSL has accepted.
    """
    ended = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps({"key": key.decode("ascii"), "password": password}).encode(),
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    if ended.returncode:
        raise OSError(f"{__name__} ended with exit code {ended.returncode}")
    return ended.stdout


def main() -> int:
    from cryptography.hazmat.primitives import serialization

    given = json.load(sys.stdin)
    key = serialization.load_pem_private_key(given["key"].encode(), given["password"].encode())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    sys.stdout.buffer.write(pem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
