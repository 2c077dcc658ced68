-- lease, why, token, pid, start, then GPUs that processes still use, which are quarantined. `why` is `dead` if the
-- holder or waiter has exited (with this pid and start time, if given); `known_dead` if a lease under GPU.py's rules
-- was acknowledged before (until then, its taker is checked instead of its holder); `late` if it was not renewed,
-- which is checked again here; or `revoked` if a rule on the node revokes it, on behalf of process `pid` and for the
-- token that the rule evaluated. Returns `was STATE` if the lease had already ended.
local lease, why, token, pid, start = ARGV[1], ARGV[2], ARGV[3] or '', ARGV[4] or '', ARGV[5] or ''
local about = call('HMGET', lease_key(lease), 'state', 'offset', 'pid', 'tok', 'start')
if not about[1] then return 'unknown' end
if about[1] ~= 'waiting' and about[1] ~= 'held' then return 'was ' .. short(about[1]) end
local expiry = call('ZSCORE', EXPIRY, lease)
if why == 'late' and expiry and tonumber(expiry) >= now then return about[1] end
if why == 'dead' and call('HEXISTS', lease_key(lease), 'known') == 1 then return about[1] end
local dead = why == 'dead' or why == 'known_dead'
if dead and pid ~= '' and (pid ~= (about[3] or '') or start ~= (about[5] or '')) then return about[1] end
if token ~= '' and token ~= about[4] then return 'lost' end
local busy = {}
for place = 6, #ARGV do busy[ARGV[place]] = true end
if why == 'revoked' then
  finish(lease, why, about[2], ' released by PID ' .. pid .. '.', busy)
else
  finish(lease, 'reaped', about[2], ' acquired by process with PID ' .. (about[3] or '0')
    .. ', was released by redis purge as the process with given PID does no longer exist.', busy)
end
assign(false)
return call('HGET', lease_key(lease), 'state')
