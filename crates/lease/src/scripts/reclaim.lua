-- lease, token, gpus, ttl, then fields and values: restores a lease with a running holder that the server lost in a
-- rollback. The script refuses if one of the lease's GPUs was granted to a newer lease; an older lease with such a GPU
-- must have ended. If the pool is newer than this lease, leases granted since the pool's creation count as older: the
-- server had lost everything, and this lease is the one in use.
local lease, token, gpus, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local written = ARGV[2]
local born = tonumber(call('HGET', META, 'born') or '0')
local known = call('HGET', lease_key(lease), 'state')
if known and known ~= 'waiting' then return { short(known), written, gpus } end
local managed, taken, count, ended = set_of(call('LRANGE', MANAGED, 0, -1)), {}, 0, {}
for id in each(gpus) do
  count = count + 1
  local owner = call('HGET', OWN, id)
  local kind = kind_of(gpu_key(id))
  local legacy = kind == 'hash' and call('HEXISTS', gpu_key(id), 'PID') == 1 and call('HEXISTS', gpu_key(id), 'lease') == 0
  local theirs = owner and owner ~= lease and is_held(owner)
  local granted = theirs and tonumber(call('HGET', lease_key(owner), 'tok'))
  local older = theirs and (granted < token or token < born and granted > born)
  if older then ended[owner] = true end
  if not managed[id] or theirs and not older or legacy then taken[#taken + 1] = id end
end
if #taken > 0 then
  note('conflict', 'lease', lease, 'gpus', table.concat(taken, ','))
  return { 'conflict', written, table.concat(taken, ',') }
end
for owner in pairs(ended) do
  local about = call('HMGET', lease_key(owner), 'offset', 'pid')
  finish(owner, 'lost', about[1], ' released by PID ' .. (about[2] or '0') .. '.')
end
local fields = {}
for place = 5, #ARGV do fields[#fields + 1] = ARGV[place] end
call('ZREM', QUEUE, lease)
call('HSET', lease_key(lease), 'state', 'held', 'want', count, 'prio', 0, 'gpus', gpus, 'tok', written, unpack(fields))
-- The lease was granted earlier, at an unknown time.
call('HSETNX', lease_key(lease), 'granted', now)
if tonumber(call('HGET', META, 'tok') or '0') < token then call('HSET', META, 'tok', written) end
for id in each(gpus) do
  for _, list in ipairs({ IDLE, POT, BAR }) do call('LREM', list, 0, id) end
  call('HDEL', QUAR, id)
  call('HSET', OWN, id, lease)
  record(lease, id, written)
end
call('ZADD', EXPIRY, now + ttl, lease)
note('reclaim', 'lease', lease, 'tok', written, 'gpus', gpus)
return { 'held', written, gpus }
