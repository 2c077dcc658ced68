-- id, why: ends the quarantine of a GPU with this reason, once no process uses it. A GPU that was taken meanwhile stays
-- taken.
local id, why = ARGV[1], ARGV[2]
if call('HGET', QUAR, id) ~= why then return 'changed' end
call('HDEL', QUAR, id)
if not set_of(call('LRANGE', MANAGED, 0, -1))[id] then return 'unmanaged' end
for _, list in ipairs({ IDLE, POT, BAR }) do
  if set_of(call('LRANGE', list, 0, -1))[id] then return 'placed' end
end
local owner = call('HGET', OWN, id)
if owner and is_held(owner) or call('EXISTS', gpu_key(id)) == 1 then return 'held' end
note('clear', 'gpu', id, 'why', why)
free(id)
assign(false)
return 'freed'
