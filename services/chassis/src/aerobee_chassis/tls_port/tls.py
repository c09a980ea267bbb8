"""Implement the server side of TLS: certificates, and a connection that acts as a socket.

This module imports `ssl`, which takes 4 MB. A relay that serves only plaintext does not import it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl

from aerobee_chassis.errors import CertificateError

# After a smaller read, decrypted bytes could stay in `ssl`, where `epoll` does not see them.
MAX_RECORD_BYTES = 16 * 1024

WOULD_WAIT = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def load(cert_path: str, key_path: str, password: str = "") -> ssl.SSLContext:
    """Return a server context for TLS 1.2 and later, with HTTP/2. Raises CertificateError."""
    for what, path in (("certificate", cert_path), ("private key", key_path)):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            problem = f"cannot read the {what} {path}: {error.strerror}"
            raise CertificateError(problem, path) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # In TLS 1.2, a client may renegotiate repeatedly, which is cheap for the client but expensive
    # for the server.
    context.options |= ssl.OP_NO_RENEGOTIATION
    encrypted = False

    def give_password() -> str:  # without a callback, OpenSSL asks at the terminal
        nonlocal encrypted
        encrypted = True
        return password

    try:
        context.load_cert_chain(cert_path, key_path, password=give_password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None)
        about = key_path
        if reason == "KEY_VALUES_MISMATCH":
            problem = f"the private key {key_path} is not the one of the certificate {cert_path}"
        elif encrypted:
            why = ", and the password of tlsKeyPasswordFile is wrong" if password else ""
            problem = f"the private key {key_path} is encrypted{why}: give its password"
            about = "tlsKeyPasswordFile"
        else:
            about = cert_path
            problem = f"certificate {cert_path} and key {key_path} cannot be used: {error}"
        raise CertificateError(problem, about) from None
    return context


def read_password(path: str) -> str:
    """Return the content of a file without the newline at its end. Raises CertificateError."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        problem = f"cannot read the password of the private key {path}: {reason}"
        raise CertificateError(problem, "tlsKeyPasswordFile") from None


def load_pem(pem: bytes, directory: str) -> ssl.SSLContext:
    """Return a server context from a key and its certificate in one text.

    `ssl` can only read files. So the text is written to `directory`, readable only by this user,
    and then removed. Raises CertificateError.
    """
    path = f"{directory}/self-signed"
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
        return load(path, path)
    finally:
        os.unlink(path)


class TlsEnd:
    """The server side of a TLS connection, which acts as a non-blocking socket."""

    def __init__(self, context: ssl.SSLContext, raw: socket.socket) -> None:
        """Wrap the socket `raw`, which this object then owns."""
        self._tls = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)

    def handshake(self) -> bool | None:
        """Continue the handshake. Raises OSError.

        Return True if it is complete, None to wait until the socket is readable, and False to wait
        until it is writable.
        """
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
        """Read the decrypted bytes that have arrived, while `buffer` has space for a whole record.

        Return the number of bytes, or 0 if the other side has ended. Raises BlockingIOError if no
        bytes have arrived.
        """
        total = 0
        while len(buffer) - total >= MAX_RECORD_BYTES:
            try:
                count = self._tls.recv_into(buffer[total:])
            except WOULD_WAIT:
                break
            if not count:
                return total  # the next call reports the end
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
        """Send close_notify, and then shut down the socket."""
        with contextlib.suppress(OSError):
            # It raises when the other side has not sent close_notify.
            self._tls.unwrap()
        socket.socket.shutdown(self._tls, how)

    def close(self) -> None:
        self._tls.close()
