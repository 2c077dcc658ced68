-- host, boot, pidns, ttl: registers a node's agent, which ends the leases of exited holders in its PID namespace.
-- With a ttl of 0, removes the agent.
local host, boot, pidns, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if ttl > 0 then
  call('HSET', AGENTS, host, string.format('%.0f %s %s', now + ttl, boot, pidns))
else
  call('HDEL', AGENTS, host)
end
return 'noted'
