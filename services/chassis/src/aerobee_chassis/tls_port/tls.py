"""TLS as a server: certificates from files or self-signed, and a socket that speaks it.

Loads `ssl`: 4 MB that a relay of plaintext does without.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl

from aerobee_chassis.errors import CertificateError

# One record is read whole, so that nothing stays behind where `epoll` does not see it.
MAX_RECORD_BYTES = 16 * 1024

WOULD_WAIT = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def load(cert_path: str, key_path: str, password: str = "") -> ssl.SSLContext:
    """What a server needs to speak TLS 1.2 and later, offering HTTP/2. Raises CertificateError."""
    for what, path in (("certificate", cert_path), ("private key", key_path)):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            raise CertificateError(f"cannot read the {what} {path}: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # TLS 1.2 would let a client ask for it again and again: dear to us and cheap to it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    encrypted = False

    def say_password() -> str:  # given even if there is none: OpenSSL would ask at the terminal
        nonlocal encrypted
        encrypted = True
        return password

    try:
        context.load_cert_chain(cert_path, key_path, password=say_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            problem = f"the private key {key_path} is not the one of the certificate {cert_path}"
        elif encrypted:
            problem = (
                f"the private key {key_path} is encrypted: give its password as tlsKeyPassword"
            )
        else:
            problem = f"certificate {cert_path} and key {key_path} cannot be used: {error}"
        raise CertificateError(problem) from None
    return context


def load_pem(pem: bytes, directory: str) -> ssl.SSLContext:
    """Of a key and its certificate in one text, which `ssl` takes from files only: it stands in
    `directory` for a moment, readable by nobody else. Raises CertificateError.
    """
    path = f"{directory}/self-signed"
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
        return load(path, path)
    finally:
        os.unlink(path)


class TlsEnd:
    """The server's end of a TLS connection, in the shape of a non-blocking socket."""

    def __init__(self, context: ssl.SSLContext, raw: socket.socket) -> None:
        """Takes `raw` over."""
        self._tls = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)

    def handshake(self) -> bool | None:
        """True: agreed; None: waits to read; False: waits to write. Raises OSError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            return False
        return True

    def fileno(self) -> int:
        return self._tls.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        """Whatever has arrived, if it fits. 0: the other side has ended."""
        total = 0
        while len(buffer) - total >= MAX_RECORD_BYTES:
            try:
                count = self._tls.recv_into(buffer[total:])
            except WOULD_WAIT:
                break
            if not count:
                return total  # the end is met again by the next call
            total += count
        if not total:
            raise BlockingIOError
        return total

    def send(self, data: memoryview, /) -> int:
        try:
            return self._tls.send(data)
        except WOULD_WAIT:
            raise BlockingIOError from None

    def shutdown(self, how: int, /) -> None:
        """Says that nothing more comes."""
        with contextlib.suppress(OSError):
            # Sends the alert, and raises because the other side's has not come.
            self._tls.unwrap()
        socket.socket.shutdown(self._tls, how)

    def close(self) -> None:
        self._tls.close()
