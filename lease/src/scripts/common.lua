-- What every script knows: the keys, the time by the server's clock, and the few ways in which an id moves.
--
-- KEYS[1] is the prefix of GPU.py's keys. An id is a decimal text and is in one place: IDLE, POT (popped for those who
-- wait), BAR (withheld after a restart of the server), QUAR, or OWN (leased by us). A GPU that a client of GPU.py holds is
-- in none of them.
local prefix = KEYS[1]
local ours = prefix .. '_V2:'
local IDLE, MANAGED, EVENTS = prefix .. '_IDLE', prefix .. '_MANAGED', prefix .. '_EVENTS'
local META, QUEUE, OWN, EXPIRY = ours .. 'META', ours .. 'Q', ours .. 'OWN', ours .. 'EXP'
local POT, BAR, QUAR, LOG, UUIDS = ours .. 'POT', ours .. 'BAR', ours .. 'QUAR', ours .. 'LOG', ours .. 'UUID'
-- What a node's agent knows: who of GPU.py's clients took an id, and until when an agent of which host is there.
local SEEN, AGENTS = ours .. 'SEEN', ours .. 'AGENTS'

-- What has happened so far, counted: events, and how long those who were granted something had waited.
local COUNTS = ours .. 'COUNTS'

local MOST_EVENTS = 10000
-- How long a record is kept after its end, so that a late retry is answered.
local REMEMBERED = 3600000
-- A wake-up that nobody took.
local WAKE_KEPT = 60000
-- Waits are counted up to each of these.
local WAITS = { 10, 100, 1000, 10000, 60000, 600000, 3600000, 21600000, 86400000 }

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function lease_key(lease) return ours .. 'LEASE:' .. lease end
local function wake_key(lease) return ours .. 'WAKE:' .. lease end
local function gpu_key(id) return prefix .. '_GPU' .. id end

-- A script is not undone where it fails in the middle: what could make it fail is looked at before anything is written.
local function wrong_key()
  local kinds = {
    [IDLE] = 'list', [MANAGED] = 'list', [EVENTS] = 'list', [POT] = 'list', [BAR] = 'list',
    [META] = 'hash', [OWN] = 'hash', [QUAR] = 'hash', [UUIDS] = 'hash', [SEEN] = 'hash', [AGENTS] = 'hash', [QUEUE] = 'zset', [EXPIRY] = 'zset', [LOG] = 'stream',
  }
  for key, kind in pairs(kinds) do
    local found = call('TYPE', key).ok
    if found ~= 'none' and found ~= kind then
      return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ' and should be a ' .. kind)
    end
  end
end

-- `2026-11-21 06:29:57`, as GPU.py writes it: the local time of whoever asked, whose offset is given in seconds. Days
-- to a date as in the proleptic Gregorian calendar, with years that begin in March.
local function clock(offset)
  local seconds = math.floor(now / 1000) + (tonumber(offset) or 0)
  local days, rest = math.floor(seconds / 86400), seconds % 86400
  local shifted = days + 719468
  local era = math.floor(shifted / 146097)
  local day = shifted - era * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02d %02d:%02d:%02d', year, month, day, math.floor(rest / 3600),
    math.floor(rest % 3600 / 60), rest % 60)
end

-- A line of GPU.py's log.
local function event(offset, text)
  call('LPUSH', EVENTS, clock(offset) .. ': ' .. text)
  call('LTRIM', EVENTS, 0, MOST_EVENTS - 1)
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

local function each(ids)
  return string.gmatch(ids or '', '[^,]+')
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

-- As GPU.py releases. Redis serves the longest waiter, of either kind, once the script has ended.
local function free(id)
  call('LREM', IDLE, 0, id)
  call('LPUSH', IDLE, id)
end

local function withhold(id, why)
  call('HSET', QUAR, id, why .. ':' .. now)
  note('quarantine', 'gpu', id, 'why', why)
end

-- Writes the record that GPU.py's --active reads.
local function record(lease, id, token)
  local about = call('HMGET', lease_key(lease), 'legacy_pid', 'offset', 'host', 'boot', 'pidns', 'pid', 'start', 'uid',
    'user', 'cmd', 'mode', 'job')
  local text = {}
  for place = 1, 12 do text[place] = about[place] or '' end
  call('DEL', gpu_key(id))
  call('HSET', gpu_key(id), 'PID', text[1], 'TIME', clock(text[2]), 'lease', lease, 'tok', token, 'host', text[3],
    'boot', text[4], 'pidns', text[5], 'pid', text[6], 'start', text[7], 'uid', text[8], 'user', text[9], 'cmd',
    text[10], 'mode', text[11], 'job', text[12])
end

-- Gives a ticket its GPUs. It must say soon that it knows.
local function grant(lease, ids)
  local token = call('HINCRBY', META, 'tok', 1)
  local about = call('HMGET', lease_key(lease), 'pid', 'offset', 'ack_ms', 'asked')
  for _, id in ipairs(ids) do
    call('LREM', IDLE, 0, id)
    call('LREM', BAR, 0, id)
    call('HSET', OWN, id, lease)
    record(lease, id, token)
    event(about[2], 'GPU ' .. id .. ' acquired by PID ' .. (about[1] or '0') .. '.')
  end
  local text = table.concat(ids, ',')
  call('HSET', lease_key(lease), 'state', 'held', 'gpus', text, 'tok', token, 'granted', now)
  call('ZREM', QUEUE, lease)
  call('ZADD', EXPIRY, now + (tonumber(about[3]) or 10000), lease)
  note('grant', 'lease', lease, 'tok', token, 'gpus', text)
  local asked = tonumber(about[4] or '')
  if asked then count_wait(now - asked) end
  call('DEL', wake_key(lease))
  call('LPUSH', wake_key(lease), token .. ':' .. text)
  call('PEXPIRE', wake_key(lease), WAKE_KEPT)
end

-- Where a GPU goes whose lease has ended: to the next, unless it is withheld, or somebody is still on it.
local function vacate(id, busy)
  call('LREM', IDLE, 0, id)
  if call('HEXISTS', QUAR, id) == 1 then return end
  if busy[id] then withhold(id, 'busy') else free(id) end
end

-- Ends a lease or a ticket; each GPU goes back once. `line` is what GPU.py's log is told of a GPU; `busy` are those that
-- somebody is seen on.
local function finish(lease, how, offset, line, busy)
  busy = busy or {}
  local about = call('HMGET', lease_key(lease), 'state', 'gpus')
  if about[1] == 'held' then
    for id in each(about[2]) do
      if call('HGET', OWN, id) == lease then
        -- What is no record is nobody's: it must not stand in the way.
        local kind = kind_of(gpu_key(id))
        call('HDEL', OWN, id)
        if kind == 'hash' and call('HGET', gpu_key(id), 'lease') == lease or kind ~= 'hash' and kind ~= 'none' then
          call('DEL', gpu_key(id))
          event(offset, 'GPU ' .. id .. line)
          vacate(id, busy)
        elseif call('LREM', IDLE, 0, id) + (busy[id] and call('LREM', POT, 0, id) or 0) > 0 then
          -- Somebody else released it already: it is there once.
          vacate(id, busy)
        end
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

-- Appends what lies in POT and may be granted, the longest there first. The rest is put where it belongs.
local function sort_pot(managed, met, ids)
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

-- The tickets that may be served, in their order, and how many GPUs they want. One that has not been heard of keeps its
-- place and is passed over; one that wants more than there are is refused, and one that wants more than is not withheld
-- lets others pass. Those behind as many as can be served at all are not looked at.
local function tickets(managed, available)
  local all, able = 0, 0
  local some_withheld = call('EXISTS', QUAR) == 1
  for id in pairs(managed) do
    all = all + 1
    if not some_withheld or call('HEXISTS', QUAR, id) == 0 then able = able + 1 end
  end
  local found, sum = {}, 0
  for _, lease in ipairs(call('ZRANGE', QUEUE, 0, -1)) do
    if sum >= available then break end
    local about = kind_of(lease_key(lease)) == 'hash' and call('HMGET', lease_key(lease), 'state', 'want') or {}
    local want, expiry = tonumber(about[2] or ''), call('ZSCORE', EXPIRY, lease)
    if about[1] ~= 'waiting' or not want then
      call('ZREM', QUEUE, lease)
    elseif want > all then
      finish(lease, 'refused', '', '')
    elseif expiry and tonumber(expiry) >= now and want <= able then
      found[#found + 1] = { lease = lease, want = want }
      sum = sum + want
    end
  end
  return found, sum
end

-- What is idle may be taken for those who wait: whoever is blocked was served before this script began, unless it put
-- something there itself.
local may_pull = true

-- Serves those who wait, in their order: the first gathers until it has all that it wants, so that nobody holds some and
-- waits for more.
local function assign(pull)
  local available = call('LLEN', POT) + (pull and may_pull and call('LLEN', IDLE) or 0)
  if available == 0 then return end
  local managed = set_of(call('LRANGE', MANAGED, 0, -1))
  local waiting, sum = tickets(managed, available)
  local ids, met = {}, {}
  repeat
    if pull and may_pull then
      for _ = 1, math.min(sum - #ids - call('LLEN', POT), call('LLEN', IDLE)) do call('RPOPLPUSH', IDLE, POT) end
    end
    sort_pot(managed, met, ids)
    -- Again, where some could not be used.
  until not (pull and may_pull) or #ids >= sum or call('LLEN', IDLE) == 0
  local next_id, gathers = 1, false
  for _, ticket in ipairs(waiting) do
    if not gathers then
      if #ids - next_id + 1 >= ticket.want then
        local theirs = {}
        for offset = 0, ticket.want - 1 do theirs[#theirs + 1] = ids[next_id + offset] end
        next_id = next_id + ticket.want
        grant(ticket.lease, theirs)
      else
        gathers = true
      end
    end
  end
  if gathers then
    for place = next_id, #ids do call('LPUSH', POT, ids[place]) end
  else
    for place = #ids, next_id, -1 do give_back(ids[place]) end
  end
end

-- A server that was started anew, or took over, may have forgotten the last grants. What it takes for idle is withheld
-- until their holders have had the time to say so (`reclaim`), and tokens are above all that were ever given.
local function barrier()
  local run = string.match(call('INFO', 'server'), 'run_id:(%x+)')
  local known = call('HMGET', META, 'run', 'barrier', 'barrier_ms')
  if known[1] ~= run then
    call('HSET', META, 'run', run)
    if not known[1] then return end
    call('HSET', META, 'barrier', now + (tonumber(known[3]) or 40000))
    call('HINCRBY', META, 'tok', 1000000)
    while call('RPOPLPUSH', IDLE, BAR) do end
    while call('RPOPLPUSH', POT, BAR) do end
    note('barrier', 'run', run)
  elseif known[2] and tonumber(known[2]) <= now then
    call('HDEL', META, 'barrier')
    may_pull = false
    local idle = set_of(call('LRANGE', IDLE, 0, -1))
    local id = call('RPOP', BAR)
    while id do
      local owner = call('HGET', OWN, id)
      -- Whose record is there holds it: he has only to release it.
      local legacy = kind_of(gpu_key(id)) == 'hash' and call('HEXISTS', gpu_key(id), 'lease') == 0
      if not (owner and is_held(owner)) and not legacy and not idle[id] then free(id) end
      id = call('RPOP', BAR)
    end
    note('barrier_over', 'run', run)
  end
end

local refused = wrong_key()
if refused then return refused end
barrier()
