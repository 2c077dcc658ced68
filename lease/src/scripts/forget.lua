-- force (0 or 1): forgets the pool, and who holds its GPUs: that only where it is forced. Whoever waits goes on waiting,
-- and tokens go on rising.
settle()
if call('HLEN', OWN) > 0 and ARGV[1] ~= '1' then return { 'held', call('HLEN', OWN) } end
local count = call('LLEN', MANAGED)
revoke_all()
clear_pool()
call('DEL', LOG, COUNTS)
call('HDEL', META, 'schema', 'barrier')
return { 'done', count }
