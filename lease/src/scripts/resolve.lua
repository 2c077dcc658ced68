-- id, pid, offset, time: a managed GPU that is in no place, or withheld, and that by all that is known of this node nobody
-- holds. `pid` and `time` are what its record said when that was found out, `pid` empty where there was none; it is
-- looked at again here. Without a time any will do.
local id, pid, offset, moment = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if not set_of(call('LRANGE', MANAGED, 0, -1))[id] then return 'unmanaged' end
local withheld = call('HEXISTS', QUAR, id) == 1
for _, list in ipairs({ IDLE, POT, BAR }) do
  -- What is withheld may be idle too: somebody released it who had it no longer.
  if not (withheld and list == IDLE) and set_of(call('LRANGE', list, 0, -1))[id] then return 'placed' end
end
local owner = call('HGET', OWN, id)
if owner and is_held(owner) then return 'held' end
local kind = call('TYPE', gpu_key(id)).ok
local recorded = kind == 'hash' and call('HMGET', gpu_key(id), 'PID', 'TIME') or {}
if (recorded[1] or '') ~= pid or moment and (recorded[2] or '') ~= moment then return 'changed' end
call('DEL', gpu_key(id))
call('HDEL', QUAR, id)
call('HDEL', OWN, id)
if pid ~= '' then
  event(offset, 'GPU ' .. id .. ' acquired by process with PID ' .. pid
    .. ', was released by redis purge as the process with given PID does no longer exist.')
end
note('resolve', 'gpu', id, 'pid', pid)
free(id)
assign(false)
return 'freed'
