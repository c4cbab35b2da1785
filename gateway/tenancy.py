"""Separate KV caches for tenants: the cache salt that a tenant's requests get. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gateway.config.access import IsolationConfig
from gateway.errors import InvalidRequest
from gateway.proxy.headers import Header, first

# Long enough that two tenants' salts never meet; vLLM takes up to 1,024 characters.
_SALT_BYTES = 16


def tenant_salt(
    isolation: IsolationConfig, key_name: str, headers: Sequence[Header], client_salt: str
) -> str | None:
    """Return the cache salt of a request; None where tenants are not separated.

    A client's own salt separates within the tenant. Salts need no secret: clients cannot choose
    the one that reaches the engine.

    Raises:
        InvalidRequest: Tenants are named by a header that the request does not have.
    """
    if isolation.by == "off":
        return None
    if isolation.by == "api_key":
        tenant = key_name.encode()
    else:
        named = first(headers, isolation.header.encode())
        if not named:
            raise InvalidRequest(f"The header `{isolation.header}` is required.")
        tenant = named
    parts = (tenant, client_salt.encode(errors="surrogatepass"))
    tagged = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hashlib.blake2b(tagged, digest_size=_SALT_BYTES).hexdigest()
