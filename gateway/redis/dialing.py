"""From the configuration to how connections to Redis are made."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from random import Random

from gateway.config.index import IndexConfig
from gateway.proxy.tls import client_context
from gateway.redis.address import Address, Credentials, parse_url
from gateway.redis.node import Dialing


def dialing_of(
    config: IndexConfig,
    now: Callable[[], float],
    rng: Random,
    lookup_timeout_s: Callable[[], float],
) -> Dialing:
    """Return how connections are made.

    Args:
        config: With a URL.
        now: Monotonic seconds.
        rng: Spreads reconnections.
        lookup_timeout_s: Returns what is in force now.

    Raises:
        TlsError: A certificate or key cannot be used.
        ValueError: There is no URL.
    """
    if config.url is None:
        raise ValueError("the index has no URL")
    address, credentials = parse_url(config.url.get_secret_value())
    if config.username is not None or config.password is not None:
        password = config.password.get_secret_value() if config.password else ""
        credentials = Credentials(
            config.username or credentials.username, password or credentials.password
        )
    return Dialing(
        address=address,
        credentials=credentials,
        tls=_tls(config, address),
        connect_timeout_s=config.connect_timeout_s,
        reply_timeout_s=config.reply_timeout_s,
        fast_limit_s=lookup_timeout_s,
        now=now,
        rng=rng,
    )


def _tls(config: IndexConfig, address: Address) -> ssl.SSLContext | None:
    if not address.tls:
        return None
    if config.tls is None:
        return ssl.create_default_context()
    context = client_context(config.tls)
    if not config.tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
