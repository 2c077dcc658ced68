-- lease, ttl, token: renews a ticket; acknowledges and renews a lease. Returns `conflict` if another client has one of
-- the lease's GPUs.
local lease, ttl, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local about = call('HMGET', lease_key(lease), 'state', 'tok', 'gpus', 'mode', 'legacy_pid')
local state = about[1]
if not state then return { 'unknown', '', '' } end
if state ~= 'waiting' and state ~= 'held' then return { short(state), '', '' } end
if state == 'held' and token ~= '' and token ~= about[2] then return { 'lost', '', '' } end
-- The caller holds the lease, but the server was rolled back to a time when the ticket was waiting.
if state == 'waiting' and token ~= '' then return { 'unknown', '', '' } end
-- A server without free memory permits a script to write only if its first write frees memory.
call('ZREM', EXPIRY, lease)
log_pending_grant(lease)
if state == 'held' and about[4] == 'compat' then
  -- Under GPU.py's rules, an acknowledged lease outlives the process that took it.
  if token ~= '' then call('HSET', lease_key(lease), 'known', 1) end
  if call('HEXISTS', lease_key(lease), 'known') == 1 then ttl = FOR_EVER end
end
call('ZADD', EXPIRY, now + ttl, lease)
if state == 'waiting' then
  local request = call('HMGET', lease_key(lease), 'want', 'among')
  if about[4] ~= 'compat' and tonumber(request[1]) > size_of(among_of(request[2], set_of(call('LRANGE', MANAGED, 0, -1)))) then
    finish(lease, 'refused', '', '')
    return { 'refused', '', '' }
  end
  assign(true)
  about = call('HMGET', lease_key(lease), 'state', 'tok', 'gpus', 'mode', 'legacy_pid')
  if about[1] == 'waiting' then return waits(lease) end
  if about[1] ~= 'held' then return { about[1], '', '' } end
  call('ZADD', EXPIRY, now + ttl, lease)
end
if token ~= '' then call('HSET', lease_key(lease), 'renewed', now) end
local taken = {}
for id in each(about[3]) do
  local owner = record_owner(lease, about[5] or '', id)
  if owner == 'invalid' then
    record(lease, id, about[2])
  elseif owner ~= 'own' then
    -- A client released the GPU without holding it. If no other client has taken the GPU yet, it is taken back.
    local free_again = owner == 'unowned' and about[4] ~= 'compat'
    if free_again and call('LREM', IDLE, 0, id) + call('LREM', POT, 0, id) + call('LREM', BAR, 0, id) > 0 then
      record(lease, id, about[2])
      note('reassert', 'gpu', id, 'lease', lease)
    else
      taken[#taken + 1] = id
    end
  end
end
if #taken > 0 and about[4] == 'compat' then
  -- Under GPU.py's rules, any client can release the GPU.
  finish(lease, 'released', '', '')
  assign(false)
  return { 'released', '', '' }
end
if #taken > 0 then
  note('conflict', 'lease', lease, 'gpus', table.concat(taken, ','))
  return { 'conflict', about[2], table.concat(taken, ',') }
end
return { 'held', about[2], about[3] }
