-- Notes that one life will probably hold blocks of one segment, or takes that back.
--
-- KEYS 1  the segment's hash of predictions
-- ARGV 1  the life, 4 bytes
--      2  milliseconds that it counts; 0 takes it back
--      3  1 where the first of the blocks begins the segment, else 0
--      4  the blocks in order, 8 bytes each
--
-- Returns how many blocks had no room.

local sub, call, pack, unpack_at = string.sub, redis.call, struct.pack, struct.unpack
local key, me, ttl_ms, blocks = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[4]
local complete = string.char(tonumber(ARGV[3]))
-- Predictions are few and short-lived; a segment with more live ones is hot beyond use of them.
local MAX_FIELDS = 1024
-- Arguments of one command: Lua's stack takes 8,000.
local MAX_ARGS = 2000

local clock = call('TIME')
-- Tenths of a second since 2025-06-15, so that 4 bytes are enough until 2039.
local now = clock[1] * 10 + math.floor(clock[2] / 100000) - 17500000000
local until_ = now + math.ceil(ttl_ms / 100)

-- Return the entries of others that still count, and our own one.
local function live(value)
  local kept, own = {}, nil
  for at = 1, #value, 9 do
    local entry = sub(value, at, at + 8)
    if sub(entry, 1, 4) == me then
      own = entry
    elseif unpack_at('<I4', entry, 5) > now then
      kept[#kept + 1] = entry
    end
  end
  return kept, own
end

local function drop_expired()
  local all, gone = call('HGETALL', key), {}
  for at = 1, #all, 2 do
    local kept, own = live(all[at + 1])
    if #kept == 0 and not (own and unpack_at('<I4', own, 5) > now) then gone[#gone + 1] = all[at] end
  end
  for from = 1, #gone, MAX_ARGS do
    call('HDEL', key, unpack(gone, from, math.min(from + MAX_ARGS - 1, #gone)))
  end
  return call('HLEN', key)
end

local num_fields, refused, cleaned = call('HLEN', key), 0, false
for at = 1, #blocks, 8 do
  local field = sub(blocks, at, at + 7)
  local value = call('HGET', key, field)
  local kept, own = live(value or '')
  if ttl_ms > 0 then
    if not value and num_fields >= MAX_FIELDS and not cleaned then
      num_fields, cleaned = drop_expired(), true
    end
    if value or num_fields < MAX_FIELDS then
      local expiry, flag = until_, complete
      if own and unpack_at('<I4', own, 5) > now then
        expiry = math.max(expiry, unpack_at('<I4', own, 5))
        if sub(own, 9) == '\1' then flag = '\1' end
      end
      kept[#kept + 1] = me .. pack('<I4', expiry) .. flag
      call('HSET', key, field, table.concat(kept))
      if not value then num_fields = num_fields + 1 end
    else
      refused, complete = refused + 1, '\0'
    end
  elseif value then
    if #kept == 0 then call('HDEL', key, field) else call('HSET', key, field, table.concat(kept)) end
  end
end
if ttl_ms > call('PTTL', key) then call('PEXPIRE', key, ttl_ms) end
return refused
