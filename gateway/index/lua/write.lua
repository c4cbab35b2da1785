-- Changes what one life holds of one segment. docs/redis.md has the layout.
--
-- KEYS 1  the segment's hash
-- ARGV 1  the life that changes it, 4 bytes
--      2  all lives that count, 4 bytes each
--      3  the highest life that these are of: a higher one is younger than they are
--      4  seconds that the segment lives from now on
--      5  what changes, in order: 1 byte of kind (S store, R remove), 1 byte of tier (0 or 1),
--         2 bytes of how many blocks, 8 bytes of the first one's parent in this segment (zeros
--         where it begins the segment), 8 bytes for each block: each is the next one's parent
--
-- Returns how many blocks had no room.

local sub, byte, char, call = string.sub, string.byte, string.char, redis.call
local unpack_at = struct.unpack
local key, me, newest, ttl_s, ops = KEYS[1], ARGV[1], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local OVERFLOW, BEGINS = '+', '\0\0\0\0\0\0\0\0'
-- Redis keeps a hash of up to 512 fields in one piece, at a quarter of the memory; one of them is
-- the mark of what overflowed.
local MAX_FIELDS = 511
-- Of one block; beyond it there are more replicas than any fleet has.
local MAX_ENTRIES = 4096
-- Arguments of one command: Lua's stack takes 8,000.
local MAX_ARGS = 2000

local counts = {['\0\0\0\0'] = true}
for at = 1, #ARGV[2], 4 do counts[sub(ARGV[2], at, at + 3)] = true end
counts[me] = true

-- Return an entry list without dead lives and without ours, and our flags.
local function without_me(value)
  local kept, flags = {}, 0
  for at = 1, #value, 5 do
    local life = sub(value, at, at + 3)
    if life == me then
      flags = byte(value, at + 4)
    elseif counts[life] or unpack_at('<I4', life) > newest then
      kept[#kept + 1] = sub(value, at, at + 4)
    end
  end
  return kept, flags
end

local others, mine, place, dirty = {}, {}, {}, {}
local overflow = call('HGET', key, OVERFLOW) or ''

-- Note in the segment that there is an overflow for this first byte: a map of 256 bits, as a longer
-- value would take the hash out of its one piece.
local function mark_overflow(first)
  if overflow == '' then overflow = string.rep('\0', 32) end
  local at, mask = math.floor(first / 8) + 1, bit.lshift(1, first % 8)
  local marked = bit.bor(byte(overflow, at), mask)
  if marked ~= byte(overflow, at) then
    overflow = sub(overflow, 1, at - 1) .. char(marked) .. sub(overflow, at + 1)
    call('HSET', key, OVERFLOW, overflow)
  end
end

local function sub_hash(field) return key .. ':' .. string.format('%02x', byte(field)) end

local function take(field, value, where)
  others[field], mine[field] = without_me(value)
  place[field] = where
end

local function load_fields(fields)
  for from = 1, #fields, MAX_ARGS do
    local some = {unpack(fields, from, math.min(from + MAX_ARGS - 1, #fields))}
    for number, value in ipairs(call('HMGET', key, unpack(some))) do
      local field = some[number]
      if value then
        take(field, value, key)
      elseif overflow ~= '' then
        local where = sub_hash(field)
        value = call('HGET', where, field)
        if value then take(field, value, where) end
      end
    end
  end
end

local num_fields = call('HLEN', key)

local function load_all()
  local all = call('HGETALL', key)
  for at = 1, #all, 2 do
    local field = all[at]
    if field ~= OVERFLOW and not place[field] then
      take(field, all[at + 1], key)
      -- What only dead lives had makes room.
      if mine[field] == 0 and #others[field] * 5 < #all[at + 1] then
        dirty[field] = true
        if #others[field] == 0 then num_fields = num_fields - 1 end
      end
    end
  end
end

-- The runs, and the fields that they touch.
local runs, wanted, seen, removes = {}, {}, {}, false
local function want(field)
  if not seen[field] and field ~= BEGINS then
    seen[field] = true
    wanted[#wanted + 1] = field
  end
end
local at = 1
while at <= #ops do
  local run = {kind = sub(ops, at, at), tier = byte(ops, at + 1), parent = sub(ops, at + 4, at + 11)}
  local stop = at + 12 + unpack_at('<H', ops, at + 2) * 8
  want(run.parent)
  for each = at + 12, stop - 1, 8 do
    local field = sub(ops, each, each + 7)
    run[#run + 1] = field
    want(field)
  end
  if run.kind == 'R' then removes = true end
  runs[#runs + 1] = run
  at = stop
end
load_fields(wanted)
if removes or num_fields >= MAX_FIELDS then load_all() end

-- Our blocks that are complete from the segment's beginning, by tier.
local completes = {[0] = {}, [1] = {}}
local held_bit, complete_bit = {[0] = 1, [1] = 2}, {[0] = 4, [1] = 8}
local function has(flags, bit) return flags % (bit * 2) >= bit end
if removes then
  for field, flags in pairs(mine) do
    for tier = 0, 1 do
      if has(flags, complete_bit[tier]) then completes[tier][field] = true end
    end
  end
end

local function set(field, bit)
  local flags = mine[field] or 0
  if not has(flags, bit) then
    mine[field] = flags + bit
    dirty[field] = true
  end
end

local function unset(field, bit)
  local flags = mine[field]
  if flags and has(flags, bit) then
    mine[field] = flags - bit
    dirty[field] = true
  end
end

local refused = 0
local function make_room(field)
  if place[field] then
    if #others[field] < MAX_ENTRIES or mine[field] ~= 0 then return true end
  elseif num_fields < MAX_FIELDS then
    place[field], others[field], mine[field] = key, {}, 0
    num_fields = num_fields + 1
    return true
  else
    local where = sub_hash(field)
    if call('HLEN', where) < MAX_FIELDS then
      place[field], others[field], mine[field] = where, {}, 0
      mark_overflow(byte(field))
      -- Written at once, or the next one would not count it.
      call('HSET', where, field, me .. '\0')
      return true
    end
  end
  refused = refused + 1
  return false
end

for _, run in ipairs(runs) do
  local tier = run.tier
  if run.kind == 'S' then
    local parent = run.parent
    for _, field in ipairs(run) do
      if make_room(field) then
        set(field, held_bit[tier])
        -- In an overflow nothing is complete: a removal need not look there.
        local follows = parent == BEGINS or has(mine[parent] or 0, complete_bit[tier])
        if follows and place[field] == key then
          set(field, complete_bit[tier])
          completes[tier][field] = true
        end
      end
      parent = field
    end
  else
    for _, field in ipairs(run) do
      unset(field, held_bit[tier])
      unset(field, complete_bit[tier])
    end
    -- What followed the removed ones is complete no longer, and who that is nobody knows here.
    for field in pairs(completes[tier]) do unset(field, complete_bit[tier]) end
    completes[tier] = {}
  end
end

local sets, gone = {}, {}
for field in pairs(dirty) do
  local list, flags = others[field], mine[field]
  local in_main = place[field] == key
  if flags ~= 0 then list[#list + 1] = me .. char(flags) end
  if #list == 0 then
    if in_main then gone[#gone + 1] = field else call('HDEL', place[field], field) end
  elseif in_main then
    sets[#sets + 1] = field
    sets[#sets + 1] = table.concat(list)
  else
    call('HSET', place[field], field, table.concat(list))
    call('EXPIRE', place[field], ttl_s)
  end
end
-- What goes comes first: a hash that was once too large stays in its larger form.
for from = 1, #gone, MAX_ARGS do
  call('HDEL', key, unpack(gone, from, math.min(from + MAX_ARGS - 1, #gone)))
end
for from = 1, #sets, MAX_ARGS do
  call('HSET', key, unpack(sets, from, math.min(from + MAX_ARGS - 1, #sets)))
end
call('EXPIRE', key, ttl_s)
return refused
