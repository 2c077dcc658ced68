-- A ticket: lease, want, priority, ttl, nonblock (0 or 1), then fields and values. Asked again with the same lease it
-- answers how that one stands.
local lease, want, priority, ttl, nonblock = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local kind = kind_of(lease_key(lease))
if kind ~= 'none' and kind ~= 'hash' then return redis.error_reply('WRONGTYPE ' .. lease_key(lease) .. ' is a ' .. kind) end
local known = call('HMGET', lease_key(lease), 'state', 'tok', 'gpus')
if known[1] then return { known[1], known[2] or '', known[3] or '' } end
local fields, compat = {}, false
for place = 6, #ARGV do fields[#fields + 1] = ARGV[place] end
for place = 1, #fields, 2 do compat = compat or fields[place] == 'mode' and fields[place + 1] == 'compat' end
local managed = size_of(set_of(call('LRANGE', MANAGED, 0, -1)))
-- By GPU.py's rules one may wait for a pool that is yet to be begun.
if managed == 0 and not compat then return { 'uninitialised', '', '' } end
if want < 1 or want > managed and not compat then return { 'impossible', tostring(managed), '' } end
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
return { 'waiting', tostring(call('ZRANK', QUEUE, lease) or ''), '' }
