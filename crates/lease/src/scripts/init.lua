-- offset, force (0, 1, or 2 to end held leases), then ids in the order in which they are pushed and granted, each
-- with its UUID or an empty text, then the number of GPUs on the host, if not all are managed: creates the pool and
-- returns the number of managed GPUs.
local offset, force = ARGV[1], ARGV[2]
local begun = kind_of(prefix .. '_INIT')
if begun ~= 'none' and begun ~= 'hash' then
  return redis.error_reply('WRONGTYPE ' .. prefix .. '_INIT is a ' .. begun .. ' and should be a hash')
end
if begun == 'hash' and force == '0' then return { 'initialised', call('LLEN', MANAGED) } end
settle()
if call('HLEN', OWN) > 0 and force ~= '2' then return { 'held', call('HLEN', OWN) } end
revoke_all()
clear_pool()
local ids, met = {}, {}
for place = 3, #ARGV - 1, 2 do
  local id = ARGV[place]
  if not met[id] then
    met[id] = true
    if ARGV[place + 1] ~= '' then call('HSET', UUIDS, id, ARGV[place + 1]) end
    ids[#ids + 1] = id
    call('LPUSH', IDLE, id)
    call('LPUSH', MANAGED, id)
  end
end
call('HSET', prefix .. '_INIT', 'TIME', clock(offset), 'GPUMANAGED', table.concat(ids, ','), 'GPUCOUNT',
  #ARGV % 2 == 1 and ARGV[#ARGV] or #ids)
event(offset, 'Redis initialized, ' .. #ids .. ' managed GPUs.')
record_server()
call('HSET', META, 'schema', 2)
return { 'done', #ids }
