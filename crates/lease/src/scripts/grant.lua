-- The first part of all scripts: the keys, the time by the server's clock, and the grant of an id.
--
-- KEYS[1] is the prefix of GPU.py's keys. An id is a decimal number as text, and is in exactly one place: IDLE, POT
-- (gathering: popped for waiting tickets), BAR (barrier after a restart of the server), QUAR (quarantined), or OWN
-- (leased by us). A GPU that a client of GPU.py holds is in none of these.
local prefix = KEYS[1]
local ours = prefix .. '_V2:'
local IDLE, MANAGED, EVENTS = prefix .. '_IDLE', prefix .. '_MANAGED', prefix .. '_EVENTS'
local META, QUEUE, OWN, EXPIRY = ours .. 'META', ours .. 'Q', ours .. 'OWN', ours .. 'EXP'
local POT, BAR, QUAR, LOG, UUIDS = ours .. 'POT', ours .. 'BAR', ours .. 'QUAR', ours .. 'LOG', ours .. 'UUID'

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function lease_key(lease) return ours .. 'LEASE:' .. lease end
local function wake_key(lease) return ours .. 'WAKE:' .. lease end
local function gpu_key(id) return prefix .. '_GPU' .. id end

-- Formats a time like `2026-11-21 06:29:57`, as GPU.py writes it: the client's local time, given its UTC offset in
-- seconds. Computes the date in the proleptic Gregorian calendar with years that start in March.
local function clock(offset, at)
  local seconds = math.floor((at or now) / 1000) + (tonumber(offset) or 0)
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

-- The fields of a ticket or lease: its state, its request, and its holder.
local function lease_fields(lease, by)
  return by('HMGET', lease_key(lease), 'state', 'want', 'among', 'ack_ms', 'legacy_pid', 'offset', 'pid', 'host', 'boot',
    'pidns', 'start', 'uid', 'user', 'cmd', 'mode', 'job')
end

-- Writes the record that GPU.py's --active reads.
local function record(lease, id, token, about)
  if not about then
    about = lease_fields(lease, call)
    -- The key may have any type here. When called for a ticket, the type was checked before.
    call('DEL', gpu_key(id))
  end
  call('HSET', gpu_key(id), 'PID', about[5] or '', 'TIME', clock(about[6]), 'lease', lease, 'tok', token,
    'pid', about[7] or '', 'host', about[8] or '', 'boot', about[9] or '', 'pidns', about[10] or '',
    'start', about[11] or '', 'uid', about[12] or '', 'user', about[13] or '', 'cmd', about[14] or '',
    'mode', about[15] or '', 'job', about[16] or '')
end

-- Grants GPUs to a ticket, which must acknowledge them soon. If the field `grant_pending` is set, `log_pending_grant` logs the
-- grant.
local function grant(lease, ids, about, ...)
  local token = string.format('%.0f', call('HINCRBY', META, 'tok', 1))
  for _, id in ipairs(ids) do
    call('HSET', OWN, id, lease)
    record(lease, id, token, about)
  end
  local text = table.concat(ids, ',')
  call('HSET', lease_key(lease), 'state', 'held', 'gpus', text, 'tok', token, 'granted', now, ...)
  call('ZREM', QUEUE, lease)
  call('ZADD', EXPIRY, now + (tonumber(about[4]) or 10000), lease)
  call('LPUSH', wake_key(lease), token .. ':' .. text)
end
