"""TLS to replicas."""

from __future__ import annotations

import ssl

from gateway.config.access import ReplicaTlsConfig


class TlsError(Exception):
    """A certificate or key cannot be used; the message says which file, and why."""


def client_context(tls: ReplicaTlsConfig) -> ssl.SSLContext:
    """Return how to speak TLS to a model's replicas: whom to trust, and what to show.

    Raises:
        TlsError: A file is missing or is not what it should be.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:  # ssl.SSLError is one too
        files = ", ".join(name for name in (tls.ca_file, tls.cert_file, tls.key_file) if name)
        what = error.strerror or error.args[0]
        raise TlsError(f"cannot use the TLS files {files}: {what}") from error
    return context
