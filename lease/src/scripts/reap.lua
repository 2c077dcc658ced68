-- Ends what was not renewed in time; answers how many.
local count = 0
for _, lease in ipairs(call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'LIMIT', 0, 100)) do
  local about = call('HMGET', lease_key(lease), 'offset', 'pid')
  finish(lease, 'reaped', about[1], ' acquired by process with PID ' .. (about[2] or '0')
    .. ', was released by redis purge as the process with given PID does no longer exist.')
  count = count + 1
end
assign(false)
return count
