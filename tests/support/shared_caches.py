"""Configurations of models that share a pool."""

from gateway.config.load import config_from_flags
from gateway.config.models import GatewayConfig


def with_shared_cache(urls, section, tokenizer=None, **fields) -> GatewayConfig:
    """A configuration for these replicas, whose one model has this `shared_cache`."""
    values = config_from_flags(list(urls), tokenizer).model_dump()
    values["models"][0].update({"shared_cache": section, **fields})
    return GatewayConfig.model_validate(values)


async def is_up(gateway) -> bool:
    """Whether the pool of a gateway's first model can be asked."""
    return (await gateway.status())["models"][0]["shared_cache"]["down"] is None
