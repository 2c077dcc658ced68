-- force (0 or 1): deletes the pool and all our keys. If leases are held, this requires force. Waiting tickets are
-- kept in order, and META with them. Ended leases that a runner has renewed are also kept, for one hour. Otherwise
-- the runner would assume that the server has lost the lease, and reclaim it.
settle()
if call('HLEN', OWN) > 0 and ARGV[1] ~= '1' then return { 'held', call('HLEN', OWN) } end
local kept = {}
local function is_remembered(key)
  if string.sub(key, 1, #lease_key('')) ~= lease_key('') then return false end
  local about = call('HMGET', key, 'state', 'tok', 'mode')
  return about[2] and about[1] ~= 'waiting' and about[1] ~= 'held' and about[3] ~= 'compat'
end
local pattern, found, cursor = string.gsub(ours, '[%*%?%[%]\\]', '\\%0') .. '*', {}, '0'
repeat
  local page = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do found[#found + 1] = key end
until cursor == '0'
local count = call('LLEN', MANAGED)
revoke_all()
clear_pool()
for _, lease in ipairs(call('ZRANGE', EXPIRY, 0, -1)) do
  if call('ZSCORE', QUEUE, lease) and tonumber(call('ZSCORE', EXPIRY, lease)) >= now then
    for _, key in ipairs({ lease_key(lease), QUEUE, EXPIRY, META }) do kept[key] = true end
  else
    call('ZREM', EXPIRY, lease)
    call('ZREM', QUEUE, lease)
  end
end
for _, key in ipairs(found) do
  if not kept[key] and not is_remembered(key) then call('DEL', key) end
end
-- The log entries and counts about the leases that this script has ended.
call('DEL', LOG, COUNTS)
if kept[META] then call('HDEL', META, 'schema', 'barrier') end
return { 'done', count }
