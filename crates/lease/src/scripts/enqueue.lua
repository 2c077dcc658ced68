-- lease, want, priority, ttl, nonblock (0 or 1), then fields and values: enqueues a ticket. If the field `among`
-- contains comma-separated ids, only these are accepted. Ids in `last` are granted after all others. A repeated call
-- with the same lease returns the status of the existing ticket.
local lease, want, priority, ttl, nonblock = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local kind = kind_of(lease_key(lease))
if kind ~= 'none' and kind ~= 'hash' then return redis.error_reply('WRONGTYPE ' .. lease_key(lease) .. ' is a ' .. kind) end
local known = call('HMGET', lease_key(lease), 'state', 'tok', 'gpus')
if known[1] == 'waiting' then
  -- A ticket that was just renewed is not skipped.
  call('ZADD', EXPIRY, now + ttl, lease)
  return waits(lease)
end
if known[1] then return { short(known[1]), known[2] or '', known[3] or '' } end
local managed = set_of(call('LRANGE', MANAGED, 0, -1))
local fields, among, compat = {}, '', false
for place = 6, #ARGV, 2 do
  local field, value = ARGV[place], ARGV[place + 1]
  if field == 'last' then
    for id in each(value) do
      if call('LREM', IDLE, 0, id) > 0 then call('LPUSH', IDLE, id) end
    end
  else
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  if field == 'among' then among = value end
  compat = compat or field == 'mode' and value == 'compat'
end
-- Under GPU.py's rules, a ticket may wait for a pool that is yet to be created.
if size_of(managed) == 0 and not compat then return { 'uninitialised', '', '' } end
local fit = size_of(among_of(among, managed))
if want < 1 or want > fit and not compat then return { 'impossible', tostring(fit), '' } end
local number = call('HINCRBY', META, 'seq', 1)
call('HSET', lease_key(lease), 'state', 'waiting', 'want', want, 'prio', priority, 'asked', now, unpack(fields))
call('ZADD', EXPIRY, now + ttl, lease)
call('ZADD', QUEUE, -priority * 1e12 + number, lease)
assign(true)
local answer = call('HMGET', lease_key(lease), 'state', 'tok', 'gpus')
if answer[1] == 'held' then
  call('DEL', wake_key(lease))
  return { 'held', answer[2], answer[3] }
end
if nonblock == '1' then
  finish(lease, 'busy', '', '')
  assign(false)
  return { 'busy', '', '' }
end
return waits(lease)
