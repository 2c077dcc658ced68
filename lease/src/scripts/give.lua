-- id, offset, pid: gives a GPU back by its number, whoever has it, as GPU.py's --release. A lease that does not play by
-- GPU.py's rules stays: `held` and its name.
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
  if recorded(owner, call('HGET', lease_key(owner), 'legacy_pid') or '', id) == 'its' then
    finish(owner, 'released', offset, line)
    assign(false)
    return { 'released', owner }
  end
  -- It was released before, and not by us. What it had may be somebody's whom only the record knows.
  finish(owner, 'released', '', '')
end
local withheld = call('HGET', QUAR, id)
if withheld then
  -- Withheld for the sake of this very record.
  if theirs or kind ~= 'hash' or not string.match(withheld, '^legacy_record:') then return { 'quarantined', withheld } end
  call('HDEL', QUAR, id)
end
call('HDEL', OWN, id)
call('DEL', gpu_key(id))
event(offset, 'GPU ' .. id .. line)
note('give', 'gpu', id, 'pid', pid)
free(id)
assign(false)
return { 'released', '' }
