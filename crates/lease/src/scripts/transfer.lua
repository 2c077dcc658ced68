-- lease, token, ttl, then fields and values: transfers a lease to the process for which it was
-- taken.
local lease, token, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local about = call('HMGET', lease_key(lease), 'state', 'tok', 'gpus')
if about[1] ~= 'held' then return { short(about[1] or 'unknown'), '', '' } end
if token ~= about[2] then return { 'lost', '', '' } end
call('ZREM', EXPIRY, lease)
local fields = {}
for place = 4, #ARGV do fields[#fields + 1] = ARGV[place] end
if #fields > 0 then call('HSET', lease_key(lease), unpack(fields)) end
call('ZADD', EXPIRY, now + ttl, lease)
for id in each(about[3]) do
  if call('HGET', OWN, id) == lease then record(lease, id, about[2]) end
end
note('transfer', 'lease', lease, 'tok', about[2])
return { 'held', about[2], about[3] }
