-- KEYS 1 digest of an id   ARGV 1 the replica that has it   2 ms to live
return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
