-- lease, why: its holder, or whoever waited, is known to be `dead`; or is `late`, which is looked at again here, since he
-- may have spoken meanwhile.
local about = call('HMGET', lease_key(ARGV[1]), 'state', 'offset', 'pid')
if about[1] ~= 'waiting' and about[1] ~= 'held' then return about[1] or 'unknown' end
local expiry = call('ZSCORE', EXPIRY, ARGV[1])
if ARGV[2] == 'late' and expiry and tonumber(expiry) >= now then return about[1] end
finish(ARGV[1], 'reaped', about[2], ' acquired by process with PID ' .. (about[3] or '0')
  .. ', was released by redis purge as the process with given PID does no longer exist.')
assign(false)
return 'reaped'
