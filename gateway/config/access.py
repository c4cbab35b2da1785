"""Who may come in, and how connections are protected."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.config.fields import ApiKey, HeaderName, Label, ListOf, Name, Section, refused


def _check_digest(text: str) -> str:
    if len(text) != 64 or not set(text.lower()) <= set("0123456789abcdef"):
        raise refused("must be 64 hexadecimal digits: the SHA-256 of the key")
    return text.lower()


def _check_origin(text: str) -> str:
    if text != "*" and (not text.startswith(("http://", "https://")) or text.count("/") != 2):
        raise refused('must be "*" or an origin such as https://app.example, without a path')
    return text


Digest = Annotated[str, AfterValidator(_check_digest)]
Origin = Annotated[str, AfterValidator(_check_origin)]


class KeyConfig(Section):
    """One API key of a client."""

    name: Label = Field(
        description="Name of its owner, for logs and isolation.", examples=["team-a"]
    )
    key: ApiKey | None = Field(
        None, description="The key itself, best as `${NAME}`; or give `sha256`. Never logged."
    )
    sha256: Digest | None = Field(
        None, description="SHA-256 of the key in hexadecimal, so that the file holds no secret."
    )
    models: ListOf[Name] = Field(
        (), description="Models that the key may use, by name or alias; empty means all."
    )
    requests_per_minute: int | None = Field(
        None,
        ge=1,
        description="Most requests in a minute, over all gateways that share a Redis and over all "
        "workers, in bursts of at most a sixth of it; further ones get 429 with Retry-After. Left "
        "out, there is no limit.",
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.key is None) == (self.sha256 is None):
            raise refused("must have either key or sha256")
        return self


class KeysFile(Section):
    """The content of `auth.keys_file`."""

    keys: ListOf[KeyConfig] = Field(
        description="Keys; none lets nobody in.", examples=["[{name: team-a, sha256: ...}]"]
    )


class AuthConfig(Section):
    """API keys. Without any, everybody who reaches the public listener may use it."""

    keys: ListOf[KeyConfig] = Field((), description="Keys in this file.")
    keys_file: Name | None = Field(
        None,
        description="YAML file with further keys, under `keys` as here. Read again when it "
        "changes; a broken new version changes nothing and is logged. Given and empty, it lets "
        "nobody in.",
    )

    @property
    def required(self) -> bool:
        """Whether requests must carry a key."""
        return bool(self.keys) or self.keys_file is not None


class IsolationConfig(Section):
    """Separate KV caches for tenants, by vLLM's cache_salt and by separate block keys here."""

    by: Literal["off", "api_key", "header"] = Field(
        "off", description="What names the tenant: the API key's owner, or a request header."
    )
    header: HeaderName = Field(
        "x-tenant-id", description="Which header, for `header`. A request without it gets 400."
    )
    inject_cache_salt: bool = Field(
        True,
        description="Add the tenant's salt to the body that goes to the replica; a client's own "
        "cache_salt then separates within the tenant. Off, only our block keys are separate.",
    )


class CorsConfig(Section):
    """Cross-origin calls from web pages."""

    origins: ListOf[Origin] = Field(
        (), description="Origins that may call, or `*` for all; empty switches CORS off."
    )
    max_age_s: int = Field(
        600, ge=0, description="Seconds that browsers may keep a preflight's answer."
    )


class ListenTlsConfig(Section):
    """TLS of the public listener."""

    cert_file: Name = Field(
        description="PEM file of the certificate and its chain.", examples=["/tls/tls.crt"]
    )
    key_file: Name = Field(description="PEM file of the private key.", examples=["/tls/tls.key"])


class ReplicaTlsConfig(Section):
    """TLS to replicas with an https address."""

    ca_file: Name | None = Field(
        None, description="PEM file of the authorities to trust; left out, the system's."
    )
    cert_file: Name | None = Field(
        None, description="PEM file of the certificate that we show (mTLS), with its chain."
    )
    key_file: Name | None = Field(None, description="PEM file of its private key.")
