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
  -- None of these: it is nowhere else, nothing is withheld, and nobody's record is there.
  if try('EXISTS', IDLE, QUAR, gpu_key(id), wake_key(lease)) ~= 0 or try('HGET', OWN, id) then return false end
  local about, expiry, managed = told(lease, try), try('ZSCORE', EXPIRY, lease), try('LPOS', MANAGED, id)
  if about[1] ~= 'waiting' or about[2] ~= '1' or (about[3] or '') ~= '' then return false end
  -- GPU.py's log has to tell of it at once: anybody may release it before its holder has spoken.
  if about[15] == 'compat' then return false end
  if type(expiry) ~= 'string' or tonumber(expiry) < now or type(managed) ~= 'number' then return false end
  call('DEL', POT)
  -- The logs can wait until its holder is awake.
  grant(lease, { id }, about, 'untold', 1)
  return true
end

if serve_first(redis.pcall) then return 'SERVED' end
