-- lease, token, offset, pid: ends a lease once, or withdraws a ticket. Returns `was STATE` if it had already
-- ended.
local lease, token, offset, pid = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local about = call('HMGET', lease_key(lease), 'state', 'tok')
if not about[1] then return 'unknown' end
if about[1] == 'waiting' then
  finish(lease, 'cancelled', offset, '')
  assign(false)
  return 'cancelled'
end
if about[1] ~= 'held' then return 'was ' .. short(about[1]) end
if token ~= '' and token ~= about[2] then return 'lost' end
finish(lease, 'released', offset, ' released by PID ' .. pid .. '.')
assign(false)
return 'released'
