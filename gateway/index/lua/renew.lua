-- Lets segments live longer, with what they overflowed into.
--
-- KEYS    the hashes of segments
-- ARGV 1  seconds that they live from now on
--
-- Returns how many of them are there.

local call, found = redis.call, 0
for _, key in ipairs(KEYS) do
  if call('EXPIRE', key, ARGV[1]) == 1 then
    found = found + 1
    local overflow = call('HGET', key, '+')
    for first = 0, overflow and 255 or -1 do
      local marks = string.byte(overflow, math.floor(first / 8) + 1)
      if bit.band(marks, bit.lshift(1, first % 8)) ~= 0 then
        call('EXPIRE', key .. ':' .. string.format('%02x', first), ARGV[1])
      end
    end
  end
end
return found
