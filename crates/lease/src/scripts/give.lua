-- id, offset, pid: releases a GPU by its number, whichever client holds it, like GPU.py's --release. A lease that does
-- not follow GPU.py's rules is kept, and the script returns `held` and the lease's name.
local id, offset, pid = ARGV[1], ARGV[2], ARGV[3]
local line = ' released by PID ' .. pid .. '.'
if not set_of(call('LRANGE', MANAGED, 0, -1))[id] then return { 'unmanaged', '' } end
for _, list in ipairs({ IDLE, POT, BAR }) do
  if set_of(call('LRANGE', list, 0, -1))[id] then return { 'idle', '' } end
end
local kind, owner = kind_of(gpu_key(id)), call('HGET', OWN, id)
local theirs = kind == 'hash' and call('HGET', gpu_key(id), 'lease')
if owner and is_held(owner) then
  if call('HGET', lease_key(owner), 'mode') ~= 'compat' then return { 'held', owner } end
  if record_owner(owner, call('HGET', lease_key(owner), 'legacy_pid') or '', id) == 'own' then
    finish(owner, 'released', offset, line)
    assign(false)
    return { 'released', owner }
  end
  -- The lease was already released by a client of GPU.py. The GPU may now be held by another client, of which only the
  -- record exists.
  finish(owner, 'released', '', '')
end
local quarantined = call('HGET', QUAR, id)
if quarantined then
  -- The release ends only a quarantine for this record.
  if theirs or kind ~= 'hash' or not string.match(quarantined, '^legacy_record:') then return { 'quarantined', quarantined } end
  call('HDEL', QUAR, id)
end
call('HDEL', OWN, id)
call('DEL', gpu_key(id))
event(offset, 'GPU ' .. id .. line)
note('give', 'gpu', id, 'pid', pid)
free(id)
assign(false)
return { 'released', '' }
