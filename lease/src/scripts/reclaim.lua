-- lease, token, gpus, ttl, then fields and values: a server that was rolled back has forgotten a lease whose holder runs.
-- It is given back, unless somebody else was given one of its GPUs after that; whoever was given one before had ended.
local lease, token, gpus, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local known = call('HGET', lease_key(lease), 'state')
if known and known ~= 'waiting' then return { known, tostring(token), gpus } end
local managed, taken, count, ended = set_of(call('LRANGE', MANAGED, 0, -1)), {}, 0, {}
for id in each(gpus) do
  count = count + 1
  local owner = call('HGET', OWN, id)
  local kind = kind_of(gpu_key(id))
  local legacy = kind == 'hash' and call('HEXISTS', gpu_key(id), 'PID') == 1 and call('HEXISTS', gpu_key(id), 'lease') == 0
  local theirs = owner and owner ~= lease and is_held(owner)
  local older = theirs and tonumber(call('HGET', lease_key(owner), 'tok')) < token
  if older then ended[owner] = true end
  if not managed[id] or theirs and not older or legacy then taken[#taken + 1] = id end
end
if #taken > 0 then
  note('conflict', 'lease', lease, 'gpus', table.concat(taken, ','))
  return { 'conflict', tostring(token), table.concat(taken, ',') }
end
for owner in pairs(ended) do
  local about = call('HMGET', lease_key(owner), 'offset', 'pid')
  finish(owner, 'lost', about[1], ' released by PID ' .. (about[2] or '0') .. '.')
end
local fields = {}
for place = 5, #ARGV do fields[#fields + 1] = ARGV[place] end
call('ZREM', QUEUE, lease)
call('HSET', lease_key(lease), 'state', 'held', 'want', count, 'prio', 0, 'gpus', gpus, 'tok', token, unpack(fields))
if tonumber(call('HGET', META, 'tok') or '0') < token then call('HSET', META, 'tok', token) end
for id in each(gpus) do
  for _, list in ipairs({ IDLE, POT, BAR }) do call('LREM', list, 0, id) end
  call('HSET', OWN, id, lease)
  record(lease, id, token)
end
call('ZADD', EXPIRY, now + ttl, lease)
note('reclaim', 'lease', lease, 'tok', token, 'gpus', gpus)
return { 'held', tostring(token), gpus }
