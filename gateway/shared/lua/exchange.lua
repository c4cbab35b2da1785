-- One tick of one gateway: what it says is taken in, and what it has not seen is returned.
--
-- KEYS  1 gateways: id -> 13 digits of ms, then what that gateway said last
--       2 lives:    "v" -> version, "life" -> the highest number given out,
--                   "r:" .. replica -> "life owner told"
--       3 holds:    "v" -> version, "r:" .. replica -> 13 digits of ms, then the hold,
--                   "w:" .. replica -> 13 digits of ms, then the weight
-- ARGV  1 id of the caller   2 what it says; empty: it leaves
--       3 ms after which a gateway that said nothing has lost what it owned
--       4, 5 versions of lives and holds that the caller has   6 the highest life that it knows of
--       7 this server's ms when this was sent, as the caller takes it; empty: it does not know
--       8.. orders, four values each: verb, replica, number, text
-- Returns { ms, version of lives, lives or nil, version of holds, holds or nil,
--           { id, ms since it was said, what it said, .. of the others } }
--
-- All times are this server's. Every loop is over gateways, over the caller's orders, or over as
-- many rows as MAX_ROWS allows.
local gateways, lives, holds = KEYS[1], KEYS[2], KEYS[3]
local me, word, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local MAX_ROWS = 4096
-- More than any time of 13 digits.
local AFTER_ANY_MS = 10^13
local GATEWAYS_TTL_MS = 60 * 1000
local LIVES_TTL_MS = 3600 * 1000
-- What operators said lasts as long as a node may be under repair.
local HOLDS_TTL_MS = 30 * 24 * 3600 * 1000
-- Eight lives a second since mid 2025 stay below 2^32 until 2042. A clock that is beyond has no say:
-- its numbers would stay too high for an entry when it is right again.
local LIFE_EPOCH_S, LIVES_A_SECOND, MAX_LIFE = 1750000000, 8, 2^32 - 1

local time = redis.call('TIME')
local now_s = tonumber(time[1])
local now_ms = now_s * 1000 + math.floor(tonumber(time[2]) / 1000)

-- A server that was paused reads what was sent to it before, also by those who gave that up.
local late_ms = math.max(0, now_ms - (tonumber(ARGV[7]) or now_ms))

local function stamped(text) return string.format('%013.0f', now_ms) .. text end

local said_ms, others = {}, {}
local heard = redis.call('HGETALL', gateways)
for i = 1, #heard, 2 do
  local id, text = heard[i], heard[i + 1]
  local at = tonumber(string.sub(text, 1, 13)) or 0
  if id ~= me then
    if now_ms - at > lease_ms then
      redis.call('HDEL', gateways, id)
    else
      local said = string.sub(text, 14)
      if at > now_ms then
        -- The clock was put back, and who is dead must not live on until it is there again.
        at = now_ms
        redis.call('HSET', gateways, id, stamped(said))
      end
      said_ms[id] = at
      others[#others + 1] = id
      others[#others + 1] = now_ms - at
      others[#others + 1] = said
    end
  end
end
if word == '' then
  redis.call('HDEL', gateways, me)
else
  redis.call('HSET', gateways, me, stamped(word))
end

-- A version never comes twice: not after the database was lost, nor after the server came back with
-- an old one.
local function version(key)
  local known = redis.call('HGET', key, 'v')
  if not known then
    known = string.format('%.0f', now_ms)
    redis.call('HSET', key, 'v', known)
  end
  return known
end

local function next_version(key, known)
  local version = string.format('%.0f', math.max(tonumber(known) + 1, now_ms))
  redis.call('HSET', key, 'v', version)
  return version
end

local function row_of(replica)
  local row = redis.call('HGET', lives, 'r:' .. replica)
  if not row then return nil end
  local life, owner, told = string.match(row, '^(%d+) (%S+) (.*)$')
  return life, owner, told
end

local function is_free(owner)
  return owner == nil or owner == '-' or (owner ~= me and not said_ms[owner])
end

-- Never one that was given out before: not after a lost database, nor after a fail-over to a
-- replica that was behind.
local function next_life()
  local counter = tonumber(redis.call('HGET', lives, 'life') or 0)
  local by_clock = (now_s - LIFE_EPOCH_S) * LIVES_A_SECOND
  if by_clock > MAX_LIFE then by_clock = 0 end
  local life = math.max(counter, by_clock, tonumber(ARGV[6])) + 1
  redis.call('HSET', lives, 'life', string.format('%.0f', life))
  return string.format('%.0f', life)
end

local lives_changed, holds_changed = false, false

local function write_row(replica, life, owner, told)
  redis.call('HSET', lives, 'r:' .. replica, life .. ' ' .. owner .. ' ' .. told)
  lives_changed = true
end

-- Of a hold or a weight; see gateway/shared/holds.py.
local function is_end(said) return said == 'null' or string.sub(said, 1, 4) == '["",' end

-- Beyond the bound a row goes, which is returned: of those that only say that something ended the
-- oldest, and where all are in force the oldest of all.
local function make_room()
  if redis.call('HLEN', holds) <= MAX_ROWS then return nil end
  local rows, first, first_rank = redis.call('HGETALL', holds), nil, nil
  for i = 1, #rows, 2 do
    local at, said = tonumber(string.sub(rows[i + 1], 1, 13)), string.sub(rows[i + 1], 14)
    if rows[i] ~= 'v' and at then
      local rank = is_end(said) and at or at + AFTER_ANY_MS
      if not first or rank < first_rank then first, first_rank = rows[i], rank end
    end
  end
  if first then redis.call('HDEL', holds, first) end
  return first
end

local obey = {}

-- A free replica becomes the caller's, and one that is the caller's begins a new life.
function obey.claim(replica)
  local life, owner = row_of(replica)
  if owner ~= me and not is_free(owner) then return end
  if not life and redis.call('HLEN', lives) > MAX_ROWS then return end
  write_row(replica, next_life(), me, '-')
end

-- What is told of a replica counts only of the life that it was told of.
function obey.tell(replica, number, text)
  local life, owner, told = row_of(replica)
  if owner == me and life == number and told ~= text then
    write_row(replica, life, me, text)
  end
end

-- The life goes on until somebody begins the next one.
function obey.release(replica)
  local life, owner, told = row_of(replica)
  if owner == me then write_row(replica, life, '-', told) end
end

-- A replica that is gone, by its owner or by anybody once nobody owns it.
function obey.drop(replica)
  local _, owner = row_of(replica)
  if owner == me or (owner and is_free(owner)) then
    redis.call('HDEL', lives, 'r:' .. replica)
    lives_changed = true
  end
end

-- An operator's word of so many ms before this was sent: the last word counts, whoever brings it
-- first. Its text begins with the time of the word that it answers, which it is later than in any
-- case.
local function say(key, number, text)
  local after, said = string.match(text, '^(%d+) (.*)$')
  local at = math.max(now_ms - late_ms - tonumber(number), tonumber(after) + 1)
  local known = redis.call('HGET', holds, key)
  if known and tonumber(string.sub(known, 1, 13)) >= at then return end
  redis.call('HSET', holds, key, string.format('%013.0f', at) .. said)
  -- One that has no room itself is no news: whoever knows it would bring it again in each tick.
  if make_room() ~= key or known then holds_changed = true end
end

function obey.hold(replica, number, text) say('r:' .. replica, number, text) end
function obey.weight(replica, number, text) say('w:' .. replica, number, text) end

local lives_version, holds_version = version(lives), version(holds)
for i = 8, #ARGV, 4 do
  obey[ARGV[i]](ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
if lives_changed then lives_version = next_version(lives, lives_version) end
if holds_changed then holds_version = next_version(holds, holds_version) end
redis.call('PEXPIRE', gateways, GATEWAYS_TTL_MS)
redis.call('PEXPIRE', lives, LIVES_TTL_MS)
redis.call('PEXPIRE', holds, HOLDS_TTL_MS)

local lives_told, holds_told = false, false
if lives_version ~= ARGV[4] then lives_told = redis.call('HGETALL', lives) end
if holds_version ~= ARGV[5] then holds_told = redis.call('HGETALL', holds) end
return { now_ms, lives_version, lives_told, holds_version, holds_told, others }
