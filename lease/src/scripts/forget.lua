-- force (0 or 1): deletes the pool and every key of ours, and the leases of its GPUs only where that is forced. What waits goes
-- on waiting in its order: these tickets stay, and META with them. So do, for an hour, the leases that are ended here and
-- that are renewed by a runner: it would take an unknown lease for one that the server lost, and ask for it back.
settle()
if call('HLEN', OWN) > 0 and ARGV[1] ~= '1' then return { 'held', call('HLEN', OWN) } end
local kept = {}
for _, lease in ipairs(call('HVALS', OWN)) do
  if is_held(lease) and call('HGET', lease_key(lease), 'mode') ~= 'compat' then kept[lease_key(lease)] = true end
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
  if not kept[key] then call('DEL', key) end
end
-- What was written of the leases that were ended here.
call('DEL', LOG, COUNTS)
if kept[META] then call('HDEL', META, 'schema', 'barrier') end
return { 'done', count }
