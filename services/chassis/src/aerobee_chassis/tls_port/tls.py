"""TLS as a server: contexts from certificates, and a connection in the shape of a socket.

Imports `ssl`, 4 MB, which a relay of plaintext alone does without.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl

from aerobee_chassis.errors import CertificateError

# Reading less would leave decrypted bytes in `ssl`, where `epoll` does not see them.
MAX_RECORD_BYTES = 16 * 1024

WOULD_WAIT = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def load(cert_path: str, key_path: str, password: str = "") -> ssl.SSLContext:
    """A server's context for TLS 1.2 and later, offering HTTP/2. Raises CertificateError."""
    for what, path in (("certificate", cert_path), ("private key", key_path)):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            problem = f"cannot read the {what} {path}: {error.strerror}"
            raise CertificateError(problem, path) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # In TLS 1.2 a client may renegotiate again and again: cheap for it and expensive for a server.
    context.options |= ssl.OP_NO_RENEGOTIATION
    encrypted = False

    def give_password() -> str:  # always, else OpenSSL prompts for one at the terminal
        nonlocal encrypted
        encrypted = True
        return password

    try:
        context.load_cert_chain(cert_path, key_path, password=give_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None)
        about = key_path
        if reason == "KEY_VALUES_MISMATCH":
            problem = f"the private key {key_path} is not the one of the certificate {cert_path}"
        elif encrypted:
            problem = (
                f"the private key {key_path} is encrypted: give its password as tlsKeyPassword"
            )
            about = "tlsKeyPassword"
        else:
            about = cert_path
            problem = f"certificate {cert_path} and key {key_path} cannot be used: {error}"
        raise CertificateError(problem, about) from None
    return context


def load_pem(pem: bytes, directory: str) -> ssl.SSLContext:
    """A context from a key and its certificate in one text. `ssl` reads files only: the text is
    written to `directory`, readable by nobody else, and removed. Raises CertificateError.
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
        """True: done; None: waits to read; False: waits to write. Raises OSError."""
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
        """The decrypted bytes that have arrived, while there is room for a whole record. 0: the
        other side has ended. Raises BlockingIOError when there are none."""
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
        """Sends close_notify, then shuts the socket down."""
        with contextlib.suppress(OSError):
            # It raises when the other side's close_notify has not come.
            self._tls.unwrap()
        socket.socket.shutdown(self._tls, how)

    def close(self) -> None:
        self._tls.close()
