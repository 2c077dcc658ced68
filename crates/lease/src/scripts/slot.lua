-- The fast path of a slot, which takes half the time: POT contains exactly one GPU, and the first waiting ticket
-- accepts any GPU. Nothing is written unless all conditions are met; otherwise the common part follows. The only
-- argument, `run`, is the server's run_id as the slot knows it. It cannot be outdated, because a connection does not
-- survive a restart of the server.
local function serve_first(try)
  local known = try('HMGET', META, 'run', 'barrier')
  if not ARGV[1] or known[1] ~= ARGV[1] or known[2] then return false end
  local pot, lease = try('LRANGE', POT, '0', '1'), try('ZRANGE', QUEUE, '0', '0')[1]
  local id = pot[1]
  if not id or pot[2] or not lease or not string.match(id, '^%d+$') then return false end
  -- The GPU is not in any other list, it is not quarantined, and there is no record.
  if try('EXISTS', IDLE, QUAR, gpu_key(id), wake_key(lease)) ~= 0 or try('HGET', OWN, id) then return false end
  local about, expiry, managed = lease_fields(lease, try), try('ZSCORE', EXPIRY, lease), try('LPOS', MANAGED, id)
  if about[1] ~= 'waiting' or about[2] ~= '1' or (about[3] or '') ~= '' then return false end
  -- GPU.py's log needs this grant at once, because any client can release the GPU before the holder acknowledges it.
  if about[15] == 'compat' then return false end
  if type(expiry) ~= 'string' or tonumber(expiry) < now or type(managed) ~= 'number' then return false end
  call('DEL', POT)
  -- The holder's first call writes the log.
  grant(lease, { id }, about, 'grant_pending', 1)
  return true
end

if serve_first(redis.pcall) then return 'SERVED' end
