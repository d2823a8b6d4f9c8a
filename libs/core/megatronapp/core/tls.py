"""TLS between whoever sends or asks and the trace-collector, with certificates of one's own CA.

Certificates lie in files, and whoever renews them (cert-manager, a Secret's volume) replaces these: a server reads them
for each handshake when they have changed, a client for each connection. Without a CA file a client speaks clear text,
which is what a cluster's own network or a service mesh is for; a token that goes out so is told of.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from megatronapp.core.errors import ConfigError
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

CA_FILE = "MEGATRONAPP_COLLECTOR_CA_FILE"
CLIENT_CERTIFICATE_FILE = "MEGATRONAPP_COLLECTOR_CLIENT_CERTIFICATE_FILE"
CLIENT_KEY_FILE = "MEGATRONAPP_COLLECTOR_CLIENT_KEY_FILE"
VARIABLES = {
    CA_FILE: "CA of the trace-collector's certificate, in PEM; empty: clear text",
    CLIENT_CERTIFICATE_FILE: "the client's own certificate, where the trace-collector asks for one (mutual TLS)",
    CLIENT_KEY_FILE: "its key",
}
"""What training pods and commands are told; docs/settings.md lists them."""
LOOPBACK = ("127.", "localhost:", "[::1]:", "unix:")

Versions = tuple[tuple[int, int], ...]
"""Of files: when each was written, and which one it is."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Files with which a client checks the collector's certificate and shows its own. No CA file: clear text."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> ClientTls:
        """As training pods and commands are told."""
        return cls(*(environment.get(name, "") for name in VARIABLES))

    @property
    def enabled(self) -> bool:
        return bool(self.ca_file)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Read anew each time; None for clear text. Raises ConfigError."""
        if bool(self.certificate_file) != bool(self.key_file):
            raise ConfigError("a client's certificate needs its key, and the key its certificate; give both files")
        if not self.ca_file:
            if self.certificate_file:
                raise ConfigError("a client's certificate is of no use in clear text; give the collector's CA file too")
            return None
        own = (_pair(self.certificate_file, self.key_file)) if self.certificate_file else (None, None)
        certificate, key = own
        return grpc.ssl_channel_credentials(_authorities(self.ca_file), key, certificate)

    def versions(self) -> Versions:
        return _versions((self.ca_file, self.certificate_file, self.key_file))


def open_channel(address: str, tls: ClientTls, options: Sequence[tuple[str, Any]] = ()) -> aio.Channel:
    """Raises ConfigError when a file can't be used."""
    credentials = tls.credentials()
    if credentials is None:
        return aio.insecure_channel(address, list(options))
    return aio.secure_channel(address, credentials, list(options))


class ClearTextWarning:
    """Said once of each address to which a token goes that everybody on the way can read."""

    def __init__(self, setting: str = CA_FILE) -> None:
        """setting: what to set to encrypt."""
        self._setting = setting
        self._addresses: set[str] = set()

    def warn(self, address: str, tls: ClientTls) -> None:
        if tls.enabled or address.startswith(LOOPBACK) or address in self._addresses:
            return
        self._addresses.add(address)
        help_text = f"set {self._setting} to encrypt, or leave it to the network"
        log.warning("token_in_clear_text", address=address, help=help_text)


def handshake_failure(details: str, tls: ClientTls) -> str:
    """What went wrong with TLS, in words; "" for another failure. gRPC tells OpenSSL's words, on one long line."""
    if not tls.enabled:
        return ""
    if "Hostname Verification" in details:
        return "the collector's certificate names another host than its address"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return f"the collector's certificate is of no CA in {tls.ca_file}, or has expired"
    if "WRONG_VERSION_NUMBER" in details:
        return "the collector speaks clear text; give no CA file here, or switch TLS on there"
    if any(word in details for word in ("Socket closed", "onnection reset", "andshake", "SSL")):
        # TLS 1.3 does not say so: a server that misses a certificate closes the connection.
        return "it broke off the connection; if it asks for certificates (mutual TLS), give this client one of its CA"
    return ""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Files of a server. With `client_ca_file` clients need a certificate of that CA."""

    certificate_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """They follow the files. Raises ConfigError when these can't be used now; what can't be used later is logged,
        and the certificates that were good stay."""
        initial = self._configuration()
        files = _Files(self)
        return grpc.dynamic_ssl_server_credentials(
            initial,
            files.changed,  # type: ignore[arg-type]  # the stubs do not know that None says "as before"
            require_client_authentication=self.client_ca_file is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = _pair(str(self.certificate_file), str(self.key_file))
        authorities = _authorities(str(self.client_ca_file)) if self.client_ca_file else None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)

    def versions(self) -> Versions:
        return _versions([str(file) for file in (self.certificate_file, self.key_file, self.client_ca_file) if file])


def server_tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """As settings give it; None for clear text. Raises ConfigError for half of what it takes."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs both tls_certificate_file and tls_key_file; set the other one too")
    return ServerTls(certificate, key, client_ca)


class _Files:
    """A server's files: asked at each handshake, in gRPC's thread."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._versions = tls.versions()

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What they hold now, when that is new."""
        versions = self._tls.versions()
        if versions == self._versions:
            return None
        try:
            found = self._tls._configuration()
        except ConfigError as error:  # perhaps half written: the next handshake looks again
            log.error("certificate_not_renewed", error=str(error))
            return None
        self._versions = versions
        log.info("certificate_renewed", file=str(self._tls.certificate_file))
        return found


def _pair(certificate_file: str, key_file: str) -> tuple[bytes, bytes]:
    """A certificate and its key, which belong together."""
    certificate, key = _read(certificate_file), _read(key_file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_file, key_file, password="")
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"{certificate_file} and {key_file} are no certificate and its key in PEM: {_in_words(error)}"
        ) from error
    return certificate, key


def _authorities(file: str) -> bytes:
    text = _read(file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{file} holds no CA certificates in PEM: {_in_words(error)}") from error
    return text


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"the certificate file {file} can't be read: {error.strerror}") from error


def _in_words(error: Exception) -> str:
    return str(error.reason).lower() if isinstance(error, ssl.SSLError) and error.reason else str(error)


def _versions(files: Sequence[str]) -> Versions:
    found = []
    for file in filter(None, files):
        try:
            status = Path(file).stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_ino))
    return tuple(found)
