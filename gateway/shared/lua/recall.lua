-- KEYS 1 digest of an id
return redis.call('GET', KEYS[1])
