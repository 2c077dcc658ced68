-- Returns the whole state at one moment as JSON: each managed GPU with the lists that contain it, each lease, and
-- each ticket. With `gpus`, returns only the GPUs, which is cheaper if many tickets are waiting.
local whole = ARGV[1] ~= 'gpus'
settle()
local idle, pot, bar = {}, {}, {}
for list, counts in pairs({ [IDLE] = idle, [POT] = pot, [BAR] = bar }) do
  for _, id in ipairs(call('LRANGE', list, 0, -1)) do counts[id] = (counts[id] or 0) + 1 end
end
local function hash(key)
  local pairs_of, map = call('HGETALL', key), {}
  for place = 1, #pairs_of, 2 do map[pairs_of[place]] = pairs_of[place + 1] end
  return map
end
local gpus, leases = {}, {}
for _, id in ipairs(call('LRANGE', MANAGED, 0, -1)) do
  local kind = call('TYPE', gpu_key(id)).ok
  local legacy = kind == 'hash' and call('HMGET', gpu_key(id), 'PID', 'TIME', 'lease') or {}
  -- GPU.py may write records without a password. A long value must not hide the rest of the pool.
  for field, value in pairs(legacy) do legacy[field] = value and string.sub(value, 1, 256) end
  gpus[#gpus + 1] = cjson.encode({
    id = id, uuid = call('HGET', UUIDS, id) or nil, idle = idle[id] or 0, pot = pot[id] or 0, bar = bar[id] or 0,
    owner = call('HGET', OWN, id) or nil, quarantine = call('HGET', QUAR, id) or nil,
    record = legacy[1] and { pid = legacy[1], time = legacy[2] or '', lease = legacy[3] or nil,
      seen = call('HGET', SEEN, id) or nil } or nil,
  })
end
for _, lease in ipairs(whole and call('ZRANGE', EXPIRY, 0, -1) or {}) do
  local about = kind_of(lease_key(lease)) == 'hash' and hash(lease_key(lease)) or {}
  about.lease, about.expires = lease, tonumber(call('ZSCORE', EXPIRY, lease))
  leases[#leases + 1] = cjson.encode(about)
end
local queue = {}
for _, lease in ipairs(whole and call('ZRANGE', QUEUE, 0, -1) or {}) do queue[#queue + 1] = cjson.encode(lease) end
local agents = {}
for host, about in pairs(hash(AGENTS)) do
  local till, boot, pidns = string.match(about, '^(%d+) (%S*) (%S*)$')
  if till and tonumber(till) >= now then agents[#agents + 1] = cjson.encode({ host = host, boot = boot, pidns = pidns }) end
end
local counts = kind_of(COUNTS) == 'hash' and hash(COUNTS) or {}
local append_only = string.match(call('INFO', 'persistence'), 'aof_enabled:(%d)')
-- An empty table would be encoded as an object.
local function list(parts) return '[' .. table.concat(parts, ',') .. ']' end
local state = '{"now":' .. string.format('%.0f', now) .. ',"barrier":' .. (call('HGET', META, 'barrier') or 'null') .. ',"gpus":' .. list(gpus)
  .. ',"leases":' .. list(leases) .. ',"queue":' .. list(queue) .. ',"agents":' .. list(agents)
  .. ',"counts":' .. cjson.encode(counts) .. ',"waits_ms":' .. cjson.encode(WAITS)
  .. ',"append_only":' .. (append_only and tostring(append_only == '1') or 'null') .. '}'
-- Anyone with access to the server can write any value. A client must not need memory for all of it.
local MOST_BYTES = 8 * 1024 * 1024
if #state > MOST_BYTES then return redis.error_reply('ERR the state of the pool is larger than 8 MiB') end
return state
