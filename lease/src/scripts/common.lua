-- What all scripts but the short way of a slot know beside that: the other ways in which an id moves.

-- What a node's agent knows: who of GPU.py's clients took an id, and until when an agent of which host is there.
local SEEN, AGENTS = ours .. 'SEEN', ours .. 'AGENTS'

-- What has happened so far, counted: events, and how long those who were granted something had waited.
local COUNTS = ours .. 'COUNTS'
local MOST_EVENTS = 10000
-- Waits are counted up to each of these.
local WAITS = { 10, 100, 1000, 10000, 60000, 600000, 3600000, 21600000, 86400000 }

-- How long a record is kept after its end, so that a late retry is answered.
local REMEMBERED = 3600000
-- A lease that nobody renews: a hundred years.
local FOR_EVER = 3155760000000

-- A script is not undone where it fails in the middle: what could make it fail is looked at before anything is written.
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

-- A line of GPU.py's log, of now or of that moment.
local function event(offset, text, at)
  local length = call('LPUSH', EVENTS, clock(offset, at) .. ': ' .. text)
  if length > MOST_EVENTS then call('LTRIM', EVENTS, 0, MOST_EVENTS - 1) end
end

-- Nothing depends on it, so nothing fails with it.
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

-- An entry of ours.
local function note(what, ...)
  count('event:' .. what, 1)
  call('XADD', LOG, 'MAXLEN', '~', MOST_EVENTS, '*', 'event', what, ...)
end

-- Logs and counts that a lease was granted, when it was.
local function tell_grant(lease)
  local about = call('HMGET', lease_key(lease), 'gpus', 'tok', 'offset', 'pid', 'asked', 'granted', 'user', 'cmd')
  local asked, granted = tonumber(about[5] or ''), tonumber(about[6] or '')
  for id in each(about[1]) do
    event(about[3], 'GPU ' .. id .. ' acquired by PID ' .. (about[4] or '0') .. '.', granted)
  end
  note('grant', 'lease', lease, 'tok', about[2], 'gpus', about[1], 'granted', about[6] or '', 'user', about[7] or '',
    'pid', about[4] or '', 'cmd', about[8] or '')
  if asked and granted then count_wait(granted - asked) end
end

-- The same, where nobody has yet, since a slot gave it.
local function tell_late(lease)
  if call('HDEL', lease_key(lease), 'untold') == 1 then tell_grant(lease) end
end

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

-- To where the longest idle are taken from: it was not used.
local function give_back(id)
  call('LREM', IDLE, 0, id)
  call('RPUSH', IDLE, id)
end

-- The server was restarted: nothing is given away until then, when all holders have had the time to speak.
local closed = false

-- As GPU.py releases. Redis serves the longest waiter, of either kind, once the script has ended.
local function free(id)
  call('LREM', IDLE, 0, id)
  if closed then call('LREM', BAR, 0, id) end
  call('LPUSH', closed and BAR or IDLE, id)
end

local function withhold(id, why)
  call('HSET', QUAR, id, why .. ':' .. now)
  note('quarantine', 'gpu', id, 'why', why)
end

-- Where a GPU goes whose lease has ended: to the next, unless it is withheld, or somebody is still on it.
local function vacate(id, busy)
  call('LREM', IDLE, 0, id)
  if call('HEXISTS', QUAR, id) == 1 then return end
  if busy[id] then withhold(id, 'busy') else free(id) end
end

-- Whose record a GPU has: `its`, which is this lease's, whose process is `pid`; `another's`, of somebody who wrote himself
-- over it or into its place; `nobody's`; or `none` that could be one.
local function recorded(lease, pid, id)
  local kind = kind_of(gpu_key(id))
  if kind ~= 'hash' then return kind == 'none' and "nobody's" or 'none' end
  local about = call('HMGET', gpu_key(id), 'lease', 'PID')
  if about[1] == lease and (about[2] or pid) == pid then return 'its' end
  return about[2] and "another's" or "nobody's"
end

-- Ends a lease or a ticket; each GPU goes back once. `line` is what GPU.py's log is told of a GPU; `busy` are those that
-- somebody is seen on.
local function finish(lease, how, offset, line, busy)
  busy = busy or {}
  tell_late(lease)
  local about = call('HMGET', lease_key(lease), 'state', 'gpus', 'legacy_pid')
  if about[1] == 'held' then
    for id in each(about[2]) do
      if call('HGET', OWN, id) == lease then
        local whose = recorded(lease, about[3] or '', id)
        call('HDEL', OWN, id)
        -- What is no record is nobody's: it must not stand in the way.
        if whose == 'its' or whose == 'none' then
          call('DEL', gpu_key(id))
          event(offset, 'GPU ' .. id .. line)
          vacate(id, busy)
        elseif call('LREM', IDLE, 0, id) + (busy[id] and call('LREM', POT, 0, id) or 0) > 0 then
          -- Somebody else released it already: it is there once.
          vacate(id, busy)
        end
        if whose == "another's" then call('HDEL', gpu_key(id), 'lease', 'tok') end
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

-- By GPU.py's rules anybody may release, and his client tells nobody: what no longer bears a lease's record is no longer
-- its own.
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

-- Ends all leases, under whoever holds them.
local function revoke_all()
  for _, lease in ipairs(call('HVALS', OWN)) do
    if is_held(lease) then finish(lease, 'revoked', '', '') end
  end
  call('DEL', OWN)
end

-- What a pool is, its records and its log.
local function clear_pool()
  for _, id in ipairs(call('LRANGE', MANAGED, 0, -1)) do call('DEL', gpu_key(id)) end
  call('DEL', IDLE, MANAGED, EVENTS, prefix .. '_INIT', POT, BAR, QUAR, UUIDS, SEEN)
end

-- What was withheld for the sake of a record goes on where that is there no more: its holder has released it.
local function lift(list)
  for _, id in ipairs(call('LRANGE', list, 0, -1)) do
    local withheld = call('HGET', QUAR, id)
    if withheld and string.match(withheld, '^legacy_record:') and kind_of(gpu_key(id)) == 'none' then
      call('HDEL', QUAR, id)
    end
  end
end

-- Appends what lies in POT and may be granted, the longest there first. The rest is put where it belongs.
local function sort_pot(managed, met, ids, early)
  local pot = call('LRANGE', POT, 0, -1)
  for place = #pot, 1, -1 do
    local id = pot[place]
    local owner, kind = call('HGET', OWN, id), kind_of(gpu_key(id))
    local theirs = kind == 'hash' and call('HGET', gpu_key(id), 'lease')
    if owner and is_held(owner) and theirs ~= owner and call('HGET', lease_key(owner), 'mode') == 'compat' then
      -- Of a lease that plays by GPU.py's rules anybody may release.
      finish(owner, 'released', '', '')
      owner = false
    end
    if met[id] then
      note('duplicate', 'gpu', id)
    elseif not managed[id] then
      note('unmanaged', 'gpu', id)
      -- GPU.py begins a pool by listing an id as idle, and as managed after that.
      if string.match(id, '^%d+$') then early[#early + 1] = id end
    elseif call('HEXISTS', QUAR, id) == 1 then
      note('withheld', 'gpu', id)
    elseif not string.match(id, '^%d+$') then
      withhold(id, 'not_a_number')
    elseif kind ~= 'none' and kind ~= 'hash' then
      withhold(id, 'wrong_type')
    elseif owner and is_held(owner) then
      -- Somebody released what is not his.
      note('duplicate', 'gpu', id, 'lease', owner)
      if kind == 'none' then record(owner, id, call('HGET', lease_key(owner), 'tok')) end
    elseif kind == 'hash' and call('HEXISTS', gpu_key(id), 'PID') == 1 and not theirs then
      withhold(id, 'legacy_record')
    else
      -- Should it be idle too, it was released twice.
      call('LREM', IDLE, 0, id)
      ids[#ids + 1] = id
    end
    met[id] = true
  end
  call('DEL', POT)
end

-- Which ids would do for a ticket, where not all do.
local function among_of(text, managed)
  if not text or text == '' then return managed end
  local among = {}
  for id in each(text) do
    if managed[id] then among[id] = true end
  end
  return among
end

-- The tickets that may be served, in their order, and how many GPUs those want to which any will do. One that has not been
-- heard of keeps its place and is passed over; one that wants more than there are is refused (one that plays by GPU.py's
-- rules waits for a pool that is yet to be begun), and one that wants more than is not withheld lets others pass. Those
-- behind as many as can be served at all are not looked at.
local function tickets(managed, available)
  local able = {}
  local some_withheld = call('EXISTS', QUAR) == 1
  for id in pairs(managed) do
    if not some_withheld or call('HEXISTS', QUAR, id) == 0 then able[id] = true end
  end
  local all, fit = size_of(managed), size_of(able)
  local found, sum = {}, 0
  for _, lease in ipairs(call('ZRANGE', QUEUE, 0, -1)) do
    if sum >= available then break end
    local about = kind_of(lease_key(lease)) == 'hash' and call('HMGET', lease_key(lease), 'state', 'want', 'among', 'mode') or {}
    local want, expiry = tonumber(about[2] or ''), call('ZSCORE', EXPIRY, lease)
    local particular = about[3] and about[3] ~= ''
    if about[1] ~= 'waiting' or not want then
      call('ZREM', QUEUE, lease)
    elseif about[4] ~= 'compat' and want > (particular and size_of(among_of(about[3], managed)) or all) then
      finish(lease, 'refused', '', '')
    elseif expiry and tonumber(expiry) >= now then
      local among = particular and among_of(about[3], able)
      if want <= (particular and size_of(among) or fit) then
        found[#found + 1] = { lease = lease, want = want, among = among }
        if not particular then sum = sum + want end
      end
    end
  end
  return found, sum
end

-- What is idle may be taken for those who wait: whoever is blocked was served before this script began, unless it put
-- something there itself.
local may_pull = true

-- Takes what is idle into POT: all that some want in particular, and then as many as are wanted at all.
local function pull_particular(waiting)
  local wished = {}
  for _, ticket in ipairs(waiting) do
    for id in pairs(ticket.among or {}) do wished[id] = true end
  end
  for id in pairs(wished) do
    if call('LREM', IDLE, 0, id) > 0 then call('LPUSH', POT, id) end
  end
  return wished
end

local function count_others(ids, wished)
  local count = 0
  for _, id in ipairs(ids) do
    if not wished[id] then count = count + 1 end
  end
  return count
end

-- Serves those who wait, in their order. Who cannot have all yet keeps what there is for him: nobody holds some and waits
-- for more, and nobody behind takes what he needs.
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
  local wished = pull and pull_particular(waiting) or {}
  local ids, met, early = {}, {}, {}
  repeat
    if pull then
      local missing = sum - count_others(ids, wished) - count_others(call('LRANGE', POT, 0, -1), wished)
      for _ = 1, math.min(missing, call('LLEN', IDLE)) do call('RPOPLPUSH', IDLE, POT) end
    end
    sort_pot(managed, met, ids, early)
    -- Again, where some could not be used.
  until not pull or count_others(ids, wished) >= sum or call('LLEN', IDLE) == 0
  for _, ticket in ipairs(waiting) do
    if #ids == 0 then break end
    local theirs, rest = {}, {}
    for _, id in ipairs(ids) do
      local fits = #theirs < ticket.want and (not ticket.among or ticket.among[id])
      table.insert(fits and theirs or rest, id)
    end
    if #theirs == ticket.want then
      -- Should one be elsewhere too, it was released twice; and whoever named the ticket cannot have been woken before.
      for _, id in ipairs(theirs) do
        call('LREM', IDLE, 0, id)
        call('LREM', BAR, 0, id)
      end
      call('DEL', wake_key(ticket.lease))
      grant(ticket.lease, theirs, told(ticket.lease, call))
      tell_grant(ticket.lease)
    else
      for _, id in ipairs(theirs) do call('LPUSH', POT, id) end
    end
    ids = rest
  end
  for place = #ids, 1, -1 do give_back(ids[place]) end
  for _, id in ipairs(early) do call('LPUSH', POT, id) end
end

-- Gives back what was withheld. Whoever is blocked in the line is served before we are.
local function open()
  call('HDEL', META, 'barrier')
  may_pull = false
  local idle = set_of(call('LRANGE', IDLE, 0, -1))
  local id = call('RPOP', BAR)
  while id do
    local owner = call('HGET', OWN, id)
    -- Whose record is there holds it: he has only to release it.
    local legacy = kind_of(gpu_key(id)) == 'hash' and call('HEXISTS', gpu_key(id), 'lease') == 0
    local withheld = call('HEXISTS', QUAR, id) == 1
    if not (owner and is_held(owner)) and not legacy and not withheld and not idle[id] then free(id) end
    id = call('RPOP', BAR)
  end
end

-- Withholds what is idle, and takes nobody for late for the time that the server was away.
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

-- Records which server a pool is on. The tokens of a new pool begin with the time in microseconds, so that they are above
-- those of one that was deleted, of which nothing is left.
local function record_server()
  local first = string.format('%.0f', time[1] * 1000000 + time[2])
  if call('HSETNX', META, 'tok', first) == 1 then call('HSET', META, 'born', first) end
  call('HSET', META, 'run', run)
end

-- A server that was restarted, or took over, may have forgotten the last grants, and may take for a holder, or for one
-- who waits, whoever is that no longer. What it takes for idle is withheld, and so is what becomes free, until those who
-- hold have had the time to say so (`reclaim`); tokens are above all that were ever given.
local function barrier()
  local known = call('HMGET', META, 'run', 'barrier', 'barrier_ms')
  local till = tonumber(known[2] or '')
  if known[1] ~= run then
    if not known[1] then
      -- Of a pool that is not there nothing is written.
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

-- How a ticket stands that waits: behind how many, and how long nothing is given away at all.
local function waits(lease)
  return { 'waiting', tostring(call('ZRANK', QUEUE, lease) or ''), closed and tostring(closed - now) or '' }
end

local refused = wrong_key()
if refused then return refused end
barrier()
