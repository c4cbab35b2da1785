"""Real servers for what gateways share."""

from tests.support.redis_servers import (
    links,
    own_redis,
    redis_cluster,
    redis_path,
    redis_server,
    shared_redis,
)

__all__ = ["links", "own_redis", "redis_cluster", "redis_path", "redis_server", "shared_redis"]
