-- offset, force (0 or 1), then ids in the order of their push, each with its GPU's UUID or nothing: the last is handed
-- out last. Answers what is managed.
local offset, force = ARGV[1], ARGV[2]
if call('EXISTS', prefix .. '_INIT') == 1 and force ~= '1' then return { 'initialised', call('LLEN', MANAGED) } end
if call('HLEN', OWN) > 0 then return { 'held', call('HLEN', OWN) } end
for _, id in ipairs(call('LRANGE', MANAGED, 0, -1)) do call('DEL', gpu_key(id)) end
call('DEL', IDLE, MANAGED, EVENTS, prefix .. '_INIT', POT, BAR, QUAR)
call('DEL', UUIDS)
local ids, met = {}, {}
for place = 3, #ARGV, 2 do
  local id = ARGV[place]
  if not met[id] then
    met[id] = true
    if ARGV[place + 1] ~= '' then call('HSET', UUIDS, id, ARGV[place + 1]) end
    ids[#ids + 1] = id
    call('LPUSH', IDLE, id)
    call('LPUSH', MANAGED, id)
  end
end
call('HSET', prefix .. '_INIT', 'TIME', clock(offset), 'GPUMANAGED', table.concat(ids, ','), 'GPUCOUNT', #ids)
event(offset, 'Redis initialized, ' .. #ids .. ' managed GPUs.')
call('HSET', META, 'schema', 2)
return { 'done', #ids }
