"""The TLS files that a configuration names, and what is made of them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.config.access import ListenTlsConfig, ReplicaTlsConfig
from gateway.config.fleet import model_key
from gateway.config.models import GatewayConfig
from gateway.proxy.tls import TlsError, client_context

Version = tuple[str | float, ...]


class Certificates:
    """How to speak TLS to each pool's replicas; made anew only where a file has changed.

    An origin's connections are kept by its context, so an equal one keeps them open.
    """

    def __init__(self) -> None:
        self._context_by_version: dict[Version, ssl.SSLContext] = {}

    def load(self, config: GatewayConfig) -> Mapping[str, ssl.SSLContext]:
        """Return the context of every pool, by its key.

        Raises:
            TlsError: A file is missing, or is not what it should be; the listener's too.
        """
        if config.listen.tls is not None:
            check_listener(config.listen.tls)
        contexts: dict[Version, ssl.SSLContext] = {}
        found: dict[str, ssl.SSLContext] = {}
        for model in config.models:
            version = _version(model.tls)
            context = contexts.get(version) or self._context_by_version.get(version)
            contexts[version] = context or client_context(model.tls)
            found[model_key(model)] = contexts[version]
        self._context_by_version = contexts
        return found


def check_listener(tls: ListenTlsConfig) -> None:
    """Check that a listener could use its files.

    Raises:
        TlsError: It could not.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:  # ssl.SSLError is one too
        what = error.strerror or error.args[0]
        message = f"cannot use the TLS files {tls.cert_file}, {tls.key_file}: {what}"
        raise TlsError(message) from error


def tls_files(config: GatewayConfig) -> Iterator[Path]:
    """Yield the files whose content counts although the configuration only names them."""
    if config.listen.tls is not None:
        yield Path(config.listen.tls.cert_file)
        yield Path(config.listen.tls.key_file)
    for model in config.models:
        for name in _files(model.tls):
            yield Path(name)


def _files(tls: ReplicaTlsConfig) -> list[str]:
    return [name for name in (tls.ca_file, tls.cert_file, tls.key_file) if name is not None]


def _version(tls: ReplicaTlsConfig) -> Version:
    version: list[str | float] = []
    for name in _files(tls):
        try:
            status = Path(name).stat()
        except OSError:
            version.append(name)  # making a context of it says what is wrong
        else:
            version += [name, status.st_mtime_ns, status.st_ino, status.st_size]
    return tuple(version)
