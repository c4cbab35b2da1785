-- How much of one prompt each life holds, segment by segment. docs/redis.md has the layout.
--
-- KEYS    the hash of each segment, in the prompt's order
-- ARGV 1  how many bytes of a key name its kind: what the kind of predictions replaces
--      2  the kind of predictions, such as "ns:p:"
--      3  the lives to look for, 4 bytes each
--      4  blocks of each segment, 2 bytes each
--      5  all block keys, 8 bytes each
--
-- Returns for each segment, until nobody is left, entries of 12 bytes: a life, and by level how
-- many leading blocks of this segment it has; 65535 for all. Levels: reported in L0; or predicted;
-- or in L1; or in the pool. Who has none is left out.

local sub, byte, find = string.sub, string.byte, string.find
local call, pack, unpack_at = redis.call, struct.pack, struct.unpack
local POOL, ALL, OVERFLOW = '\0\0\0\0', 65535, '+'
-- Blocks looked at one by one before all that are left are fetched at once.
local FEW = 4

-- An entry's flags: 1 in L0, 2 in L1, 4 and 8 complete from the segment's first block on.
local L0, L1, C0, C1 = {}, {}, {}, {}
for flags = 0, 15 do
  L0[flags] = flags % 2 >= 1
  L1[flags] = flags % 4 >= 2
  C0[flags] = flags % 8 >= 4
  C1[flags] = flags >= 8
end

local clock = call('TIME')
-- Tenths of a second since 2025-06-15, as in predict.lua.
local now = clock[1] * 10 + math.floor(clock[2] / 100000) - 17500000000

-- Where a life's entry begins in a value of entries of one size; nil where there is none.
local function entry_at(value, life, size)
  local at = find(value, life, 1, true)
  while at and at % size ~= 1 do at = find(value, life, at + 1, true) end
  return at
end

-- One segment at a time: what was read of it, by number of the block.
local key, of_predictions, base, length
local values, expected, overflow

local function field(number) return sub(ARGV[5], base + number * 8 - 8, base + number * 8 - 1) end

-- Run a command on a key that is not among KEYS. It is in the same slot, and while a cluster moves
-- that slot it may be on the other node: then nothing is known of it for a moment.
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then return false end
  return reply
end

local function from_overflow(name)
  if overflow == nil then overflow = call('HGET', key, OVERFLOW) end
  if not overflow then return false end
  return try('HGET', key .. ':' .. string.format('%02x', byte(name)), name)
end

local function fetch(number)
  local name = field(number)
  values[number] = call('HGET', key, name) or from_overflow(name)
  expected[number] = try('HGET', of_predictions, name)
end

local function fetch_rest(first)
  local names = {}
  for number = first, length do names[#names + 1] = field(number) end
  local found = call('HMGET', key, unpack(names))
  local predicted = try('HMGET', of_predictions, unpack(names))
  for number = first, length do
    local at = number - first + 1
    values[number] = found[at] or from_overflow(names[at])
    expected[number] = predicted and predicted[at]
  end
end

local function flags_of(number, life)
  if values[number] == nil then fetch(number) end
  local value = values[number]
  local at = value and entry_at(value, life, 5)
  return at and byte(value, at + 4) or 0
end

-- 1 where a life is predicted to have all blocks up to one, 0 for that one alone, else nil.
local function predicted(number, life)
  if expected[number] == nil then fetch(number) end
  local value = expected[number]
  local at = value and entry_at(value, life, 9)
  if at and unpack_at('<I4', value, at + 4) > now then return byte(value, at + 8) end
end

-- Whether all blocks up to one are there, as that one's flags say; false may still be all.
local function complete(level, life, number)
  local flags = flags_of(number, life)
  if C0[flags] then return true end
  if level == 0 then return false end
  if predicted(number, life) == 1 then return true end
  if level == 1 then return false end
  if C1[flags] then return true end
  return level == 3 and C0[flags_of(number, POOL)]
end

local function held(level, life, number)
  local flags = flags_of(number, life)
  if L0[flags] then return true end
  if level == 0 then return false end
  if predicted(number, life) then return true end
  if level == 1 then return false end
  if L1[flags] then return true end
  return level == 3 and L0[flags_of(number, POOL)]
end

-- How far a level goes, of which so many blocks are known to be there.
local function run(level, life, good)
  if complete(level, life, length) then return length end
  if not held(level, life, good + 1) then return good end
  good = good + 1
  local bad = length
  while bad - good > 1 do
    local middle = math.floor((good + bad) / 2)
    if complete(level, life, middle) then good = middle else bad = middle end
  end
  -- Flags may be missing where blocks are not, so the end is looked for one by one.
  local looked = 0
  while good < length and held(level, life, good + 1) do
    good, looked = good + 1, looked + 1
    if looked == FEW and good < length then fetch_rest(good + 1) end
  end
  return good
end

local active, level = {}, {}
for at = 1, #ARGV[3], 4 do
  local life = sub(ARGV[3], at, at + 3)
  active[#active + 1] = life
  level[life] = 0
end

local all_of_level = {}
for first = 0, 3 do
  local runs = {}
  for each = 0, 3 do runs[each] = each < first and 0 or ALL end
  all_of_level[first] = pack('<HHHH', runs[0], runs[1], runs[2], runs[3])
end

-- What one segment says, who is left after it, and whether all of them have all of it.
local function look()
  local told, left, is_whole = {}, {}, true
  for _, life in ipairs(active) do
    local at = level[life]
    if complete(at, life, length) then
      told[#told + 1] = life .. all_of_level[at]
      left[#left + 1] = life
    else
      is_whole = false
      local runs, good = {[0] = 0, 0, 0, 0}, 0
      while at < 4 do
        good = run(at, life, good)
        if good == length then break end
        runs[at] = good
        at = at + 1
      end
      for each = at, 3 do runs[each] = ALL end
      level[life] = at
      if runs[3] > 0 then
        told[#told + 1] = life .. pack('<HHHH', runs[0], runs[1], runs[2], runs[3])
      end
      if at < 4 then left[#left + 1] = life end
    end
  end
  active = left
  return table.concat(told), is_whole
end

local out, start, before, said = {}, 1, nil, nil
for number, name in ipairs(KEYS) do
  if #active == 0 then break end
  key, base, overflow, values, expected = name, start, nil, {}, {}
  length = unpack_at('<H', ARGV[4], number * 2 - 1)
  of_predictions = ARGV[2] .. sub(name, ARGV[1] + 1)
  fetch(length)
  -- Most segments end as the one before, and then they say the same.
  if before and values[length] == before and not expected[length] then
    out[number] = said
  else
    local is_whole
    said, is_whole = look()
    out[number] = said
    before = is_whole and not expected[length] and values[length] or nil
  end
  start = start + length * 8
end
return out
