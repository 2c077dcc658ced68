-- id, pid, offset, time: releases a managed GPU that is quarantined or not in any list, and that is not held by a
-- process on the node. `pid` and `time` are those in its record when that was determined, and `pid` is empty if
-- there was no record. The record is checked again here. Without a time, any time matches.
local id, pid, offset, moment = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if not set_of(call('LRANGE', MANAGED, 0, -1))[id] then return 'unmanaged' end
local quarantined = call('HEXISTS', QUAR, id) == 1
for _, list in ipairs({ IDLE, POT, BAR }) do
  -- A quarantined GPU may also be idle, if it was released by a client that no longer held it.
  if not (quarantined and list == IDLE) and set_of(call('LRANGE', list, 0, -1))[id] then return 'placed' end
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
