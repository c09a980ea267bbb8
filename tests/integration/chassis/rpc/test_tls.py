"""A server with TLS, and a caller with certificates."""

from __future__ import annotations

import asyncio
import datetime
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2

from aerobee_chassis.rpc import caller as caller_module
from aerobee_chassis.rpc import peer_tls
from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.peer_tls import ClientAuth, PeerTls, ServerTls
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.standard_services import HEALTH
from aerobee_chassis.rpc.transport import CallFailed
from aerobee_cli.authority import Authority
from aerobee_wire.certificates import (
    ANYBODY_CERTIFICATE,
    ANYBODY_KEY,
    CertificateFiles,
    tls_cause,
)
from support.clock.polling import until

CLUSTER = "prod"


class Check:
    path = f"/{HEALTH.full_name}/Check"
    response = health_pb2.HealthCheckResponse


class Watch(Check):
    path = f"/{HEALTH.full_name}/Watch"


class Refused(Exception):
    pass


def refused(_address: str, failure: CallFailed) -> Exception:
    return Refused(failure.message)


def no_failure(_error: Exception) -> Failure | None:
    return None


def authority(directory: Path, days: int = 90) -> Authority:
    made = Authority(directory, datetime.datetime.now(datetime.UTC))
    made.init(CLUSTER, "broker-a", ["localhost"], days)
    return made


def files(directory: Path, role: str) -> CertificateFiles:
    if not role:
        return CertificateFiles(str(directory / "ca.crt"))
    certificate, key = directory / f"{role}.crt", directory / f"{role}.key"
    return CertificateFiles(str(directory / "ca.crt"), str(certificate), str(key))


def copied(directory: Path, other: Path) -> CertificateFiles:
    """Return the files of a caller, in a directory of its own."""
    shutil.copytree(directory, other)
    return files(other, "proxy")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cluster") / "secure"
    authority(directory)
    return directory


@asynccontextmanager
async def serving(directory: Path, client_auth: ClientAuth = "require") -> AsyncIterator[str]:
    tls = ServerTls(files(directory, "broker"), client_auth)
    server = Server([], host="127.0.0.1", port=0, failure_of=no_failure, tls=tls)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


async def ask(address: str, tls: PeerTls | None) -> int:
    caller = Caller(refused, tls)
    try:
        request = health_pb2.HealthCheckRequest()
        return int((await caller.call(address, Check, request, timeout_s=10)).status)
    finally:
        await caller.close()


async def test_a_caller_with_a_certificate_of_the_cluster_is_served(secure: Path) -> None:
    async with serving(secure) as address:
        assert (
            await ask(address, PeerTls(files(secure, "proxy"), CLUSTER)) == Check.response.SERVING
        )


async def test_another_broker_than_the_expected_one_is_not_called(secure: Path) -> None:
    request = health_pb2.HealthCheckRequest()
    async with serving(secure) as address:
        caller = Caller(refused, PeerTls(files(secure, "proxy"), CLUSTER))

        async def ask_again() -> None:
            await caller.call(address, Check, request, timeout_s=10)

        await ask_again()  # any broker may answer, because none is expected
        stream = caller.stream(address, Watch, request)
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        caller.expect(address, "broker-b")
        with pytest.raises(Refused, match=r"Peer name|Hostname"):
            await ask_again()
        assert not waiting.done()  # running calls continue
        caller.expect(address, "broker-a")
        await ask_again()
        waiting.cancel()
        await caller.close()
        with pytest.raises(Refused):
            await ask(address, PeerTls(files(secure, "broker"), CLUSTER, "broker-b"))


async def test_an_old_connection_gets_no_new_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls and streams do not fail, until the server does not trust the certificate any more."""
    monkeypatch.setattr(peer_tls, "MAX_AGE_MS", 300)
    peers: set[str] = set()
    run = Server._run

    async def running(self: Server, service: str, method: Any, request: Any, call: Call) -> Any:
        peers.add(call.peer)
        return await run(self, service, method, request, call)

    monkeypatch.setattr(Server, "_run", running)
    directory = tmp_path / "secure"
    authority(directory)
    request = health_pb2.HealthCheckRequest()
    async with serving(directory) as address:
        caller = Caller(refused, PeerTls(copied(directory, tmp_path / "caller"), CLUSTER))
        stream = caller.stream(address, Watch, request)
        await anext(stream)

        async def connects_again() -> bool:
            answers = (caller.call(address, Check, request, timeout_s=10) for _ in range(50))
            await asyncio.gather(*answers)
            return len(peers) > 3

        await until(connects_again)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert not waiting.done()
        authority(tmp_path / "other")
        (tmp_path / "other" / "ca.crt").replace(directory / "ca.crt")

        async def is_refused() -> bool:
            try:
                await caller.call(address, Check, request, timeout_s=10)
            except Refused:
                return True
            return False

        await until(is_refused)
        waiting.cancel()
        await caller.close()


async def test_no_other_caller_is_served(secure: Path, tmp_path: Path) -> None:
    authority(tmp_path / "secure")
    foreign = CertificateFiles(
        str(secure / "ca.crt"),
        str(tmp_path / "secure" / "proxy.crt"),
        str(tmp_path / "secure" / "proxy.key"),
    )
    async with serving(secure) as address:
        for tls in (None, PeerTls(files(secure, ""), CLUSTER), PeerTls(foreign, CLUSTER)):
            with pytest.raises(Refused):
                await ask(address, tls)


@pytest.mark.parametrize(
    ("caller", "reason"),
    [
        ("without a certificate", r"CERTIFICATE_VERIFY_FAILED \(self.signed certificate\)"),
        ("of another authority", r"CERTIFICATE_VERIFY_FAILED \(.*issuer certificate\)"),
        ("in plaintext", "it uses plaintext, and tlsServerMode is enforcing"),
    ],
)
async def test_the_log_of_a_server_says_why_a_handshake_failed(
    secure: Path, tmp_path: Path, caller: str, reason: str
) -> None:
    authority(tmp_path / "secure")
    foreign = files(tmp_path / "secure", "proxy")
    tls = {
        "without a certificate": PeerTls(files(secure, ""), CLUSTER),
        "of another authority": PeerTls(
            CertificateFiles(str(secure / "ca.crt"), foreign.certificate, foreign.key), CLUSTER
        ),
        "in plaintext": None,
    }[caller]
    with structlog.testing.capture_logs() as logs:
        async with serving(secure) as address:
            for _ in range(2):  # one of them is logged
                with pytest.raises(Refused):
                    await ask(address, tls)
            await until(lambda: [each for each in logs if each["event"] == "connection_refused"])
    (line,) = (each for each in logs if each["event"] == "connection_refused")
    assert re.search(reason, line["reason"]) and line["peer"].startswith("127.0.0.1:")


async def test_the_log_says_that_a_caller_does_not_trust_the_server(
    secure: Path, tmp_path: Path
) -> None:
    """A caller that sends its reason before it leaves, as gRPC's library does."""
    authority(tmp_path / "secure")
    distrusting = ssl.create_default_context(cafile=tmp_path / "secure" / "ca.crt")

    def connect(host: str, port: int) -> None:
        with (
            socket.create_connection((host, port)) as raw,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            distrusting.wrap_socket(raw, server_hostname="localhost")

    with structlog.testing.capture_logs() as logs:
        async with serving(secure) as address:
            host, _, port = address.rpartition(":")
            await asyncio.to_thread(connect, host, int(port))
            await until(lambda: [each for each in logs if each["event"] == "connection_refused"])
    (line,) = (each for each in logs if each["event"] == "connection_refused")
    assert "UNKNOWN_CA" in line["reason"]


async def test_a_probe_that_leaves_before_its_handshake_is_not_logged(secure: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(secure) as address:
            host, _, port = address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            await writer.wait_closed()
            proxy = PeerTls(files(secure, "proxy"), CLUSTER)
            assert await ask(address, proxy) == Check.response.SERVING
    assert [each for each in logs if each["event"] == "connection_refused"] == []


@pytest.mark.parametrize(("days", "cause"), [(-91, "expired"), (3, "not valid yet")])
async def test_certificates_count_within_their_time_only(
    secure: Path, tmp_path: Path, days: int, cause: str
) -> None:
    """An expired certificate, and one that is not valid yet, of either side."""
    other = tmp_path / "secure"
    shutil.copytree(secure, other)
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    for role in ("proxy", "broker"):
        Authority(other, now).issue(role, f"{role}-b", ["localhost"], 90)
        for suffix in ("crt", "key"):
            (other / f"{role}-b.{suffix}").replace(other / f"{role}.{suffix}")
    async with serving(secure) as address:
        with pytest.raises(Refused):
            await ask(address, PeerTls(files(other, "proxy"), CLUSTER))
        proxy = PeerTls(files(secure, "proxy"), CLUSTER)
        assert await ask(address, proxy) == Check.response.SERVING
    async with serving(other) as address:
        with pytest.raises(Refused) as caught:
            await ask(address, proxy)
        assert cause in tls_cause(str(caught.value)), str(caught.value)


async def test_a_caller_without_a_certificate_is_served_if_it_is_optional(
    secure: Path, tmp_path: Path
) -> None:
    """The key of the certificate that such a caller presents is public, but signs nothing else."""
    async with serving(secure, "optional") as address:
        for role in ("", "proxy"):
            tls = PeerTls(files(secure, role), CLUSTER)
            assert await ask(address, tls) == Check.response.SERVING
        for forged in forgeries(tmp_path, secure / "ca.crt"):
            with pytest.raises(Refused):
                await ask(address, PeerTls(forged, CLUSTER))


def forgeries(directory: Path, ca: Path) -> Iterator[CertificateFiles]:
    """Yield certificates with the role admin, which the key that everybody has signed."""
    anybody = x509.load_pem_x509_certificate(ANYBODY_CERTIFICATE)
    public = serialization.load_pem_private_key(ANYBODY_KEY, None)
    own = ec.generate_private_key(ec.SECP256R1())
    assert isinstance(public, ec.EllipticCurvePrivateKey)
    admin = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")])
    uri = x509.UniformResourceIdentifier(f"aerobee://{CLUSTER}/admin/admin")

    def signed(subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> bytes:
        made = (
            x509.CertificateBuilder(anybody.subject, subject, key.public_key(), serial_number=7)
            .not_valid_before(datetime.datetime(2020, 1, 1))
            .not_valid_after(datetime.datetime(2999, 1, 1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
            .sign(public, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    chains = (
        (own, signed(admin, own, ca=False)),
        (own, signed(admin, own, ca=False) + ANYBODY_CERTIFICATE),
        (own, signed(admin, own, ca=False) + signed(anybody.subject, public, ca=True)),
        (public, signed(anybody.subject, public, ca=False)),
        (public, signed(anybody.subject, public, ca=True)),
    )
    for number, (key, chain) in enumerate(chains):
        certificate, key_file = directory / f"{number}.crt", directory / f"{number}.key"
        certificate.write_bytes(chain)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        yield CertificateFiles(str(ca), str(certificate), str(key_file))


async def test_a_permissive_port_serves_tls_and_plaintext_and_sees_the_caller(
    secure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, tuple[str, ...], str]] = []
    run = Server._run

    async def running(self: Server, service: str, method: Any, request: Any, call: Call) -> Any:
        host = call.peer.rpartition(":")[0]
        seen.append((call.is_encrypted, call.certificate_uris, host))
        return await run(self, service, method, request, call)

    monkeypatch.setattr(Server, "_run", running)
    tls = ServerTls(files(secure, "broker"), "require", accepts_plaintext=True)
    server = Server([], host="127.0.0.1", port=0, failure_of=no_failure, tls=tls)
    await server.start()
    proxy = PeerTls(files(secure, "proxy"), CLUSTER)
    try:
        assert await ask(server.address, None) == Check.response.SERVING
        assert await ask(server.address, proxy) == Check.response.SERVING
        with pytest.raises(Refused):  # TLS without a certificate
            await ask(server.address, PeerTls(files(secure, ""), CLUSTER))
    finally:
        await server.stop()
    uri = f"aerobee://{CLUSTER}/proxy/proxy"
    assert seen == [(False, (), "127.0.0.1"), (True, (uri,), "127.0.0.1")]
    with pytest.raises(Refused):
        await ask(server.address, None)


async def test_a_caller_refuses_another_authority_name_and_plaintext(
    secure: Path, tmp_path: Path
) -> None:
    authority(tmp_path / "secure")
    async with serving(secure, "none") as address:
        assert await ask(address, PeerTls(files(secure, ""), CLUSTER)) == Check.response.SERVING
        for tls in (
            PeerTls(files(tmp_path / "secure", ""), CLUSTER),
            PeerTls(files(secure, ""), "another"),
            PeerTls(files(secure, ""), ""),  # no certificate of this test has the name 127.0.0.1
        ):
            with pytest.raises(Refused):
                await ask(address, tls)
    plain = Server([], host="127.0.0.1", port=0, failure_of=no_failure)
    await plain.start()
    with pytest.raises(Refused):
        await ask(plain.address, PeerTls(files(secure, "proxy"), CLUSTER))
    await plain.stop()


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
async def test_downgrade(secure: Path) -> None:
    """Both sides need TLS 1.2, none falls back to plaintext, and the caller learns why."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    without_sni = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without_sni.check_hostname, without_sni.verify_mode = False, ssl.CERT_NONE
    without_sni.set_alpn_protocols(["h2"])
    async with serving(secure, "none") as address:
        host, _, port = address.rpartition(":")
        with pytest.raises(OSError):
            await asyncio.open_connection(host, int(port), ssl=old)
        _, writer = await asyncio.open_connection(host, int(port), ssl=without_sni)
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        writer.close()
        with pytest.raises(Refused) as caught:
            await ask(address, None)
        assert "tlsTrustCertPath" in tls_cause(str(caught.value))
    plain = Server([], host="127.0.0.1", port=0, failure_of=no_failure)
    await plain.start()
    for role in ("", "proxy"):
        with pytest.raises(Refused) as caught:
            await ask(plain.address, PeerTls(files(secure, role), CLUSTER))
        assert "does not use TLS" in tls_cause(str(caught.value))
    await plain.stop()


async def test_new_certificates_and_a_new_authority_need_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_module, "RELOAD_S", 0.02)
    old, new = tmp_path / "old" / "secure", tmp_path / "new" / "secure"
    authority(old)
    authority(new)
    request = health_pb2.HealthCheckRequest()
    peers = PeerTls(files(old, "proxy"), CLUSTER)
    caller = Caller(refused, peers)

    async def call() -> None:
        answer = await caller.call(address, Check, request, timeout_s=10)
        assert answer.status == Check.response.SERVING

    def take(*names: str) -> None:
        for name in names:
            (old / name).write_bytes((new / name).read_bytes())

    async with serving(old) as address:
        watch = caller.stream(address, Watch, request)
        assert (await anext(watch)).status == Check.response.SERVING
        # First both sides trust both authorities, then they change their own certificates.
        both = (old / "ca.crt").read_bytes() + (new / "ca.crt").read_bytes()
        (old / "ca.crt").write_bytes(both)
        await until(lambda: peers.of(Check.path).authorities == both)
        await call()
        take("broker.crt", "broker.key")
        await call()
        take("proxy.crt", "proxy.key")
        own = (new / "proxy.crt").read_bytes()
        await until(lambda: peers.of(Check.path).certificate == own)
        await call()
        take("ca.crt")
        await until(lambda: peers.of(Check.path).authorities not in (b"", both))
        await call()

        async def serves_the_new_authority() -> bool:
            status = await ask(address, PeerTls(files(new, "proxy"), CLUSTER))
            return bool(status == Check.response.SERVING)

        await until(serves_the_new_authority, retry_on=(Refused,))
        await watch.aclose()
        await caller.close()
