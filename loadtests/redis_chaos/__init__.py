"""What clients notice when the gateways' Redis fails in nine ways (`make measure-redis-chaos`)."""
