-- lease, milliseconds: sets the end of a lease with a time limit to this long from now. Returns the new end.
local lease, span = ARGV[1], tonumber(ARGV[2])
local about = call('HMGET', lease_key(lease), 'state', 'mode', 'max_ms', 'granted')
if about[1] ~= 'held' then return { short(about[1] or 'unknown'), 0 } end
if about[2] == 'timed' then
  call('ZREM', EXPIRY, lease)
  call('ZADD', EXPIRY, now + span, lease)
elseif about[3] and about[3] ~= '' then
  call('HSET', lease_key(lease), 'max_ms', now - tonumber(about[4]) + span)
else
  return { 'endless', 0 }
end
note('extend', 'lease', lease, 'until', now + span)
return { 'extended', now + span }
