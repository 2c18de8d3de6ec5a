package redis

// script appends messages to one stream: those that it does not know yet, each unless an earlier one of its lane
// failed. It returns a list of numbers and errors of the messages that failed, or "missing" when there is no stream.
//
// What a script does, Redis does as one: in memory, in its log and to its replicas. The ids are noted after the
// entries, and no crash comes in between.
//
//	KEYS  stream, set of the last ids, set of the ids before those
//	ARGV  window, expiry of the sets in ms, 1 if the stream may be created, MAXLEN or MAXAGE or nothing, its value,
//	      and a MessagePack array that has of each message: lane (0 is none), id, number of arguments, arguments of XADD
//
// A set that has reached the window becomes the older one, which is dropped: so the last window ids are known at any
// time, and at most twice as many.
const script = `if redis.replicate_commands then redis.replicate_commands() end
local stream, recent, older = KEYS[1], KEYS[2], KEYS[3]
local window = tonumber(ARGV[1])
if ARGV[3] == '0' and redis.call('EXISTS', stream) == 0 then return 'missing' end
local lanes, ids, first, last, n = {}, {}, {}, {}, 0
local items = cmsgpack.unpack(ARGV[6])
local i, total = 1, #items
while i <= total do
  n = n + 1
  lanes[n], ids[n], first[n] = items[i], items[i+1], i + 3
  i = i + 3 + items[i+2]
  last[n] = i - 1
end
local known, before = {}, {}
if window > 0 then
  known = redis.call('SMISMEMBER', recent, unpack(ids))
  before = redis.call('SMISMEMBER', older, unpack(ids))
end
local added, new, failed, errors = {}, {}, {}, {}
for m = 1, n do
  local lane, id = lanes[m], ids[m]
  if not failed[lane] and known[m] ~= 1 and before[m] ~= 1 and not new[id] then
    local answer = redis.pcall('XADD', stream, '*', unpack(items, first[m], last[m]))
    if type(answer) == 'table' then
      errors[#errors+1] = m
      errors[#errors+1] = answer.err
      if lane ~= 0 then failed[lane] = true end
    elseif window > 0 then
      added[#added+1] = id
      new[id] = true
    end
  end
end
if window > 0 then
  if #added > 0 then redis.call('SADD', recent, unpack(added)) end
  redis.call('PEXPIRE', recent, ARGV[2])
  redis.call('PEXPIRE', older, ARGV[2])
  if redis.call('SCARD', recent) >= window then
    redis.call('UNLINK', older)
    redis.call('RENAME', recent, older)
  end
end
if ARGV[4] == 'MAXLEN' then
  redis.call('XTRIM', stream, 'MAXLEN', '~', ARGV[5])
elseif ARGV[4] == 'MAXAGE' then
  redis.call('XTRIM', stream, 'MINID', '~', string.format('%.0f', redis.call('TIME')[1] * 1000 - ARGV[5]))
end
return errors`
