"""The shared fixtures: real servers, and links to them that end with the test."""

from tests.support.redis_servers import (
    links,
    own_redis,
    redis_cluster,
    redis_path,
    redis_server,
    shared_redis,
    valkey_server,
)

__all__ = [
    "links",
    "own_redis",
    "redis_cluster",
    "redis_path",
    "redis_server",
    "shared_redis",
    "valkey_server",
]
