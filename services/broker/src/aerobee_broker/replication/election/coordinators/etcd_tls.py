"""Read the TLS certificates for connections from a broker to etcd, once at the start."""

from __future__ import annotations

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.rpc.peer_tls import usable
from aerobee_chassis.rpc.transport import ChannelTls
from aerobee_wire.certificates import CertificateFiles, OptionNames

NAMES = OptionNames("etcdCaPath", "etcdCertPath", "etcdKeyPath")


def etcd_tls(options: BrokerOptions) -> ChannelTls | None:
    """Return the TLS settings for etcd, or None for plaintext.

    Raises CertificateError, which names the file.
    """
    if not options.etcd_ca_path:
        return None
    paths = options.etcd_ca_path, options.etcd_cert_path, options.etcd_key_path
    return ChannelTls(*usable(CertificateFiles(*paths, NAMES).load))
