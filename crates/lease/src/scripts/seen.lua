-- id, pid, time, evidence: stores evidence about the process that wrote this record, if the record is unchanged.
local id, pid, time, what = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local about = kind_of(gpu_key(id)) == 'hash' and call('HMGET', gpu_key(id), 'PID', 'TIME') or {}
if about[1] ~= pid or (about[2] or '') ~= time then return 'changed' end
call('HSET', SEEN, id, what)
return 'kept'
