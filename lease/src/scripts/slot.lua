-- The usual way of a slot, which takes half the time: one GPU lies in POT, and the first who waits wants one, whichever.
-- Nothing is written unless all is as it should be, and what is not is left to the long way below. `run`, the one
-- argument, is the server's run_id as the slot knows it: a connection does not outlive its server, so it need not be
-- asked for.
local function serve_first(try)
  local known = try('HMGET', META, 'run', 'barrier')
  if not ARGV[1] or known[1] ~= ARGV[1] or known[2] then return false end
  local pot, lease = try('LRANGE', POT, '0', '1'), try('ZRANGE', QUEUE, '0', '0')[1]
  local id = pot[1]
  if not id or pot[2] or not lease or not string.match(id, '^%d+$') then return false end
  if try('LLEN', IDLE) ~= 0 or try('HLEN', QUAR) ~= 0 or try('HGET', OWN, id) or try('EXISTS', gpu_key(id)) ~= 0 then
    return false
  end
  local about, expiry, managed = told(lease, try), try('ZSCORE', EXPIRY, lease), false
  if about[1] ~= 'waiting' or about[2] ~= '1' or (about[3] or '') ~= '' then return false end
  if type(expiry) ~= 'string' or tonumber(expiry) < now then return false end
  for _, other in ipairs(try('LRANGE', MANAGED, '0', '-1')) do managed = managed or other == id end
  -- Of what is written and was not read: an error is a table.
  for _, size in ipairs({ try('LLEN', EVENTS), try('XLEN', LOG), try('LLEN', wake_key(lease)) }) do
    managed = managed and type(size) == 'number'
  end
  if managed then
    call('DEL', POT)
    grant(lease, { id }, about)
  end
  return managed
end

if serve_first(redis.pcall) then return 'SERVED' end
