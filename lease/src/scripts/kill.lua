-- lease, why, token, pid, start, then the GPUs that somebody is seen on, which are withheld until he has left. The holder,
-- or whoever waited, is known to be `dead`: the one of this pid and start, where they are given; `known_dead` where it was
-- seen that he knows of what he has by GPU.py's rules, since before that it is his taker who was looked at. Or he is
-- `late`, which is looked at again here, since he may have spoken meanwhile; or a rule of the node's has the lease
-- `revoked`, by the process `pid` and with the token that was judged. `was STATE` where it had ended before.
local lease, why, token, pid, start = ARGV[1], ARGV[2], ARGV[3] or '', ARGV[4] or '', ARGV[5] or ''
local about = call('HMGET', lease_key(lease), 'state', 'offset', 'pid', 'tok', 'start')
if not about[1] then return 'unknown' end
if about[1] ~= 'waiting' and about[1] ~= 'held' then return 'was ' .. about[1] end
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
