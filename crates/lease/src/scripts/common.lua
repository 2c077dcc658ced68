-- The common part of all scripts, after grant.lua: all operations on ids other than a grant. The fast path of a
-- slot (slot.lua) runs before this part.

-- Evidence from a node's agent about the processes that took ids through GPU.py, and until when each host's agent is
-- registered.
local SEEN, AGENTS = ours .. 'SEEN', ours .. 'AGENTS'

-- Counters: events, and the waiting times of granted tickets.
local COUNTS = ours .. 'COUNTS'
local MOST_EVENTS = 10000
-- Upper bounds of the histogram of waiting times, in milliseconds.
local WAITS = { 10, 100, 1000, 10000, 60000, 600000, 3600000, 21600000, 86400000 }

-- How long the record of an ended lease is kept, so that a late retry gets a reply.
local REMEMBERED = 3600000
-- The expiry of a lease without renewals: a hundred years.
local FOR_EVER = 3155760000000

-- A script that fails is not rolled back, so everything that could make it fail is checked before the first write.
local function wrong_key()
  local kinds = {
    [IDLE] = 'list', [MANAGED] = 'list', [EVENTS] = 'list', [POT] = 'list', [BAR] = 'list',
    [META] = 'hash', [OWN] = 'hash', [QUAR] = 'hash', [UUIDS] = 'hash', [SEEN] = 'hash', [AGENTS] = 'hash',
    [QUEUE] = 'zset', [EXPIRY] = 'zset', [LOG] = 'stream',
  }
  for key, kind in pairs(kinds) do
    local found = call('TYPE', key).ok
    if found ~= 'none' and found ~= kind then
      return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ' and should be a ' .. kind)
    end
  end
end

local function each(ids)
  return string.gmatch(ids or '', '[^,]+')
end

-- Writes a line of GPU.py's log, for the current time or for `at`.
local function event(offset, text, at)
  local length = call('LPUSH', EVENTS, clock(offset, at) .. ': ' .. text)
  if length > MOST_EVENTS then call('LTRIM', EVENTS, 0, MOST_EVENTS - 1) end
end

-- Counters must not make a script fail, so their errors are ignored.
local function count(what, by)
  redis.pcall('HINCRBY', COUNTS, what, by)
end

local function count_wait(waited)
  local bound = 'longer'
  for place = #WAITS, 1, -1 do
    if waited <= WAITS[place] then bound = WAITS[place] end
  end
  count('wait:' .. bound, 1)
  count('waited', math.max(waited, 0))
end

-- Adds an entry to our own log.
local function note(what, ...)
  count('event:' .. what, 1)
  call('XADD', LOG, 'MAXLEN', '~', MOST_EVENTS, '*', 'event', what, ...)
end

-- Logs and counts the grant of a lease.
local function log_grant(lease)
  local about = call('HMGET', lease_key(lease), 'gpus', 'tok', 'offset', 'pid', 'asked', 'granted', 'user', 'cmd')
  local asked, granted = tonumber(about[5] or ''), tonumber(about[6] or '')
  for id in each(about[1]) do
    event(about[3], 'GPU ' .. id .. ' acquired by PID ' .. (about[4] or '0') .. '.', granted)
  end
  note('grant', 'lease', lease, 'tok', about[2], 'gpus', about[1], 'granted', about[6] or '', 'user', about[7] or '',
    'pid', about[4] or '', 'cmd', about[8] or '')
  if asked and granted then count_wait(granted - asked) end
end

-- Logs a grant that was made by a slot, which did not log it.
local function log_pending_grant(lease)
  if call('HDEL', lease_key(lease), 'grant_pending') == 1 then log_grant(lease) end
end

-- Shortens a value that another client may have written, because a client must not need memory for all of it.
local function short(text) return string.sub(text, 1, 64) end

local function set_of(list)
  local set = {}
  for _, id in ipairs(list) do set[id] = true end
  return set
end

local function size_of(set)
  local size = 0
  for _ in pairs(set) do size = size + 1 end
  return size
end

local function kind_of(key) return call('TYPE', key).ok end

local function is_held(lease)
  return kind_of(lease_key(lease)) == 'hash' and call('HGET', lease_key(lease), 'state') == 'held'
end

-- Puts an unused id back at the end of the idle list from which GPUs are taken, where the longest idle GPUs are.
local function give_back(id)
  call('LREM', IDLE, 0, id)
  call('RPUSH', IDLE, id)
end

-- End of the barrier after a restart of the server, until which nothing is granted. False if there is no barrier.
local closed = false

-- Releases an id as GPU.py does. After the script, Redis serves the client that has been blocked longest, which may
-- be a GPU.py client or one of our clients.
local function free(id)
  call('LREM', IDLE, 0, id)
  if closed then call('LREM', BAR, 0, id) end
  call('LPUSH', closed and BAR or IDLE, id)
end

local function quarantine(id, why)
  call('HSET', QUAR, id, why .. ':' .. now)
  note('quarantine', 'gpu', id, 'why', why)
end

-- Releases a GPU whose lease has ended, unless it is quarantined or a process still uses it.
local function vacate(id, busy)
  call('LREM', IDLE, 0, id)
  if call('HEXISTS', QUAR, id) == 1 then return end
  if busy[id] then quarantine(id, 'busy') else free(id) end
end

-- Returns whose record a GPU has: `own` if it belongs to this lease, whose process is `pid`; `other` if another client
-- has taken the GPU over; `unowned` if there is no client; `invalid` if the key has a wrong type.
local function record_owner(lease, pid, id)
  local kind = kind_of(gpu_key(id))
  if kind ~= 'hash' then return kind == 'none' and 'unowned' or 'invalid' end
  local about = call('HMGET', gpu_key(id), 'lease', 'PID')
  if about[1] == lease and (about[2] or pid) == pid then return 'own' end
  return about[2] and 'other' or 'unowned'
end

-- Ends a lease or a ticket. Each GPU is released once. `line` is the text for GPU.py's log, `busy` are GPUs that a
-- process still uses.
local function finish(lease, how, offset, line, busy)
  busy = busy or {}
  log_pending_grant(lease)
  local about = call('HMGET', lease_key(lease), 'state', 'gpus', 'legacy_pid')
  if about[1] == 'held' then
    for id in each(about[2]) do
      if call('HGET', OWN, id) == lease then
        local owner = record_owner(lease, about[3] or '', id)
        call('HDEL', OWN, id)
        -- An invalid record is deleted, because it would block the GPU.
        if owner == 'own' or owner == 'invalid' then
          call('DEL', gpu_key(id))
          event(offset, 'GPU ' .. id .. line)
          vacate(id, busy)
        elseif call('LREM', IDLE, 0, id) + (busy[id] and call('LREM', POT, 0, id) or 0) > 0 then
          -- Another client has already released the GPU, which must not be listed twice.
          vacate(id, busy)
        end
        if owner == 'other' then call('HDEL', gpu_key(id), 'lease', 'tok') end
      end
    end
  end
  call('HSET', lease_key(lease), 'state', how, 'ended', now)
  call('PEXPIRE', lease_key(lease), REMEMBERED)
  call('ZREM', QUEUE, lease)
  call('ZREM', EXPIRY, lease)
  call('DEL', wake_key(lease))
  note(how, 'lease', lease, 'gpus', about[2] or '')
end

-- Under GPU.py's rules, any client can release a GPU without notice. A lease under these rules has ended if the GPU's
-- record is no longer its own.
local function settle()
  local owners = call('HGETALL', OWN)
  for place = 1, #owners, 2 do
    local id, lease = owners[place], owners[place + 1]
    if is_held(lease) and call('HGET', lease_key(lease), 'mode') == 'compat' then
      local kind = kind_of(gpu_key(id))
      if kind == 'none' or kind == 'hash' and call('HGET', gpu_key(id), 'lease') ~= lease then
        call('HDEL', OWN, id)
        finish(lease, 'released', '', '')
      end
    end
  end
end

-- Ends all leases, even if they are held.
local function revoke_all()
  for _, lease in ipairs(call('HVALS', OWN)) do
    if is_held(lease) then finish(lease, 'revoked', '', '') end
  end
  call('DEL', OWN)
end

-- Deletes the pool's lists, its records and its log.
local function clear_pool()
  for _, id in ipairs(call('LRANGE', MANAGED, 0, -1)) do call('DEL', gpu_key(id)) end
  call('DEL', IDLE, MANAGED, EVENTS, prefix .. '_INIT', POT, BAR, QUAR, UUIDS, SEEN)
end

-- Ends quarantines that were caused by a GPU.py record, if the holder has released the GPU and the record is gone.
local function lift(list)
  for _, id in ipairs(call('LRANGE', list, 0, -1)) do
    local why = call('HGET', QUAR, id)
    if why and string.match(why, '^legacy_record:') and kind_of(gpu_key(id)) == 'none' then
      call('HDEL', QUAR, id)
    end
  end
end

-- Appends the ids in POT that can be granted to `ids`, oldest first. The others are put into the lists to which they
-- belong.
local function sort_pot(managed, met, ids, early)
  local pot = call('LRANGE', POT, 0, -1)
  for place = #pot, 1, -1 do
    local id = pot[place]
    local owner, kind = call('HGET', OWN, id), kind_of(gpu_key(id))
    local theirs = kind == 'hash' and call('HGET', gpu_key(id), 'lease')
    if owner and is_held(owner) and theirs ~= owner and call('HGET', lease_key(owner), 'mode') == 'compat' then
      -- Under GPU.py's rules, any client may have released the GPU.
      finish(owner, 'released', '', '')
      owner = false
    end
    if met[id] then
      note('duplicate', 'gpu', id)
    elseif not managed[id] then
      note('unmanaged', 'gpu', id)
      -- When GPU.py creates a pool, it first lists an id as idle and then as managed.
      if string.match(id, '^%d+$') then early[#early + 1] = id end
    elseif call('HEXISTS', QUAR, id) == 1 then
      note('withheld', 'gpu', id)
    elseif not string.match(id, '^%d+$') then
      quarantine(id, 'not_a_number')
    elseif kind ~= 'none' and kind ~= 'hash' then
      quarantine(id, 'wrong_type')
    elseif owner and is_held(owner) then
      -- A client released a GPU that it did not hold.
      note('duplicate', 'gpu', id, 'lease', owner)
      if kind == 'none' then record(owner, id, call('HGET', lease_key(owner), 'tok')) end
    elseif kind == 'hash' and call('HEXISTS', gpu_key(id), 'PID') == 1 and not theirs then
      quarantine(id, 'legacy_record')
    else
      -- If the id is also idle, it was released twice.
      call('LREM', IDLE, 0, id)
      ids[#ids + 1] = id
    end
    met[id] = true
  end
  call('DEL', POT)
end

-- The managed ids that a ticket accepts.
local function among_of(text, managed)
  if not text or text == '' then return managed end
  local among = {}
  for id in each(text) do
    if managed[id] then among[id] = true end
  end
  return among
end

-- Returns the tickets that may be served, in order, and the number of GPUs that are requested by tickets for any GPU.
-- A ticket that was not renewed keeps its position and is skipped. A ticket for more GPUs than exist is refused,
-- except under GPU.py's rules, where it may wait for a pool that is yet to be created. A ticket is also skipped
-- while too few GPUs are out of quarantine for it. Once tickets use up all available GPUs, the rest is not read.
local function tickets(managed, available)
  local usable = {}
  local some_quarantined = call('EXISTS', QUAR) == 1
  for id in pairs(managed) do
    if not some_quarantined or call('HEXISTS', QUAR, id) == 0 then usable[id] = true end
  end
  local all, fit = size_of(managed), size_of(usable)
  local found, sum = {}, 0
  for _, lease in ipairs(call('ZRANGE', QUEUE, 0, -1)) do
    if sum >= available then break end
    local about = kind_of(lease_key(lease)) == 'hash' and call('HMGET', lease_key(lease), 'state', 'want', 'among', 'mode') or {}
    local want, expiry = tonumber(about[2] or ''), call('ZSCORE', EXPIRY, lease)
    local selective = about[3] and about[3] ~= ''
    if about[1] ~= 'waiting' or not want then
      call('ZREM', QUEUE, lease)
    elseif about[4] ~= 'compat' and want > (selective and size_of(among_of(about[3], managed)) or all) then
      finish(lease, 'refused', '', '')
    elseif expiry and tonumber(expiry) >= now then
      local among = selective and among_of(about[3], usable)
      if want <= (selective and size_of(among) or fit) then
        found[#found + 1] = { lease = lease, want = want, among = among }
        if not selective then sum = sum + want end
      end
    end
  end
  return found, sum
end

-- Whether idle GPUs may be taken for waiting tickets. True at first, because clients that are blocked in Redis were
-- served before this script started. False once the script itself adds idle GPUs: those clients are served first.
local may_pull = true

-- Moves to POT all idle ids that waiting tickets select. Returns the selected ids.
local function pull_selected(waiting)
  local selected = {}
  for _, ticket in ipairs(waiting) do
    for id in pairs(ticket.among or {}) do selected[id] = true end
  end
  for id in pairs(selected) do
    if call('LREM', IDLE, 0, id) > 0 then call('LPUSH', POT, id) end
  end
  return selected
end

local function count_others(ids, selected)
  local count = 0
  for _, id in ipairs(ids) do
    if not selected[id] then count = count + 1 end
  end
  return count
end

-- Serves waiting tickets in order. If too few GPUs are available for a ticket, they stay reserved for it in POT: a
-- ticket does not hold some GPUs while it waits for more, and a ticket behind it cannot take them.
local function assign(pull)
  if closed then
    while call('RPOPLPUSH', POT, BAR) do end
    return
  end
  pull = pull and may_pull
  local available = call('LLEN', POT) + (pull and call('LLEN', IDLE) or 0)
  if available == 0 then return end
  if call('EXISTS', QUAR) == 1 then
    lift(POT)
    lift(IDLE)
  end
  local managed = set_of(call('LRANGE', MANAGED, 0, -1))
  local waiting, sum = tickets(managed, available)
  local selected = pull and pull_selected(waiting) or {}
  local ids, met, early = {}, {}, {}
  repeat
    if pull then
      local missing = sum - count_others(ids, selected) - count_others(call('LRANGE', POT, 0, -1), selected)
      for _ = 1, math.min(missing, call('LLEN', IDLE)) do call('RPOPLPUSH', IDLE, POT) end
    end
    sort_pot(managed, met, ids, early)
    -- Repeated, because some ids may not have been usable.
  until not pull or count_others(ids, selected) >= sum or call('LLEN', IDLE) == 0
  for _, ticket in ipairs(waiting) do
    if #ids == 0 then break end
    local theirs, rest = {}, {}
    for _, id in ipairs(ids) do
      local fits = #theirs < ticket.want and (not ticket.among or ticket.among[id])
      table.insert(fits and theirs or rest, id)
    end
    if #theirs == ticket.want then
      -- An id that is also in another list was released twice. A wake-up message left from an earlier use of the key
      -- is deleted.
      for _, id in ipairs(theirs) do
        call('LREM', IDLE, 0, id)
        call('LREM', BAR, 0, id)
      end
      call('DEL', wake_key(ticket.lease))
      grant(ticket.lease, theirs, lease_fields(ticket.lease, call))
      log_grant(ticket.lease)
    else
      for _, id in ipairs(theirs) do call('LPUSH', POT, id) end
    end
    ids = rest
  end
  for place = #ids, 1, -1 do give_back(ids[place]) end
  for _, id in ipairs(early) do call('LPUSH', POT, id) end
end

-- Ends the barrier and releases its GPUs. Clients that are blocked in Redis are served before our tickets.
local function open()
  call('HDEL', META, 'barrier')
  may_pull = false
  local idle = set_of(call('LRANGE', IDLE, 0, -1))
  local id = call('RPOP', BAR)
  while id do
    local owner = call('HGET', OWN, id)
    -- A client of GPU.py that has a record holds the GPU and will release it.
    local legacy = kind_of(gpu_key(id)) == 'hash' and call('HEXISTS', gpu_key(id), 'lease') == 0
    local quarantined = call('HEXISTS', QUAR, id) == 1
    if not (owner and is_held(owner)) and not legacy and not quarantined and not idle[id] then free(id) end
    id = call('RPOP', BAR)
  end
end

-- Starts the barrier: idle GPUs are withdrawn, and leases and tickets do not expire before its end.
local function close(till)
  call('HSET', META, 'barrier', till)
  call('HINCRBY', META, 'tok', 1000000)
  while call('RPOPLPUSH', IDLE, BAR) do end
  for _, lease in ipairs(call('ZRANGE', EXPIRY, 0, -1)) do
    local timed = kind_of(lease_key(lease)) == 'hash' and call('HGET', lease_key(lease), 'mode') == 'timed'
    if not timed and tonumber(call('ZSCORE', EXPIRY, lease)) < till then call('ZADD', EXPIRY, till, lease) end
  end
end

local run = string.match(call('INFO', 'server'), 'run_id:(%x+)')

-- Stores the server's run_id. The tokens of a new pool start at the current time in microseconds, so that they are
-- higher than those of a deleted pool, of which no data is left.
local function record_server()
  local first = string.format('%.0f', time[1] * 1000000 + time[2])
  if call('HSETNX', META, 'tok', first) == 1 then call('HSET', META, 'born', first) end
  call('HSET', META, 'run', run)
end

-- A server that was restarted or promoted may have lost the last grants, and may list holders and waiters that have
-- exited. Nothing is granted until all holders have had time to reclaim their leases: idle GPUs and GPUs that become
-- free are put into the barrier list. New tokens are higher than all tokens ever granted.
local function barrier()
  local known = call('HMGET', META, 'run', 'barrier', 'barrier_ms')
  local till = tonumber(known[2] or '')
  if known[1] ~= run then
    if not known[1] then
      -- Nothing is written for a pool that does not exist.
      if call('EXISTS', MANAGED, QUEUE) > 0 then record_server() end
      return
    end
    call('HSET', META, 'run', run)
    closed = now + (tonumber(known[3] or '') or 40000)
    close(closed)
    note('barrier', 'run', run)
  elseif till and till <= now then
    open()
    note('barrier_over', 'run', run)
  else
    closed = till
  end
end

-- Returns the reply for a waiting ticket: its position, and how long the barrier lasts.
local function waits(lease)
  return { 'waiting', tostring(call('ZRANK', QUEUE, lease) or ''), closed and tostring(closed - now) or '' }
end

local refused = wrong_key()
if refused then return refused end
barrier()
