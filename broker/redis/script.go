package redis

// script appends messages to one stream: those that it doesn't know yet, each unless an earlier one of its lane failed.
// It returns a list of numbers and errors of the messages that failed, or "missing" when there is no stream.
//
// A script is atomic: in memory, in the log and for replicas. The ids are noted after the entries, and no crash comes
// in between.
//
//	KEYS  stream, set of the last ids, set of the ids before those, what is known of the sets
//	ARGV  window, expiry of the sets in ms, 1 if the stream may be created, MAXLEN or MAXAGE or nothing, its value,
//	      call, and a MessagePack array that has of each message: lane (0 is none), id, its stamp, number of
//	      arguments, arguments of XADD
//
// When a set has reached the window, it becomes the older one, and the former older one is dropped. So the last window
// ids are always known, and at most twice as many.
//
// An id is looked up only if it can be in a set. Its stamp, which is the time in it, is compared with the highest stamp
// noted before this call began: an id above that is new. (Ids that this call itself has noted don't matter: a message
// goes into one script of a call, and the script is sent once.) So in a stream of growing ids hardly any is looked up,
// most ids without a time are, and a zombie's are whenever another call came in between. If another program changed the
// sets without the record about them, their sizes show it; then all ids are looked up until sets that are on record
// have replaced these.
const script = `if redis.replicate_commands then redis.replicate_commands() end
local stream, recent, older, known = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local window, call = tonumber(ARGV[1]), ARGV[6]
if ARGV[3] == '0' and redis.call('EXISTS', stream) == 0 then return 'missing' end
local lanes, ids, stamps, first, last, n = {}, {}, {}, {}, {}, 0
local items = cmsgpack.unpack(ARGV[7])
local i, total = 1, #items
while i <= total do
  n = n + 1
  lanes[n], ids[n], stamps[n], first[n] = items[i], items[i+1], items[i+2], i + 4
  i = i + 4 + items[i+3]
  last[n] = i - 1
end
local nothing, everything = -1, 2^53
local base, top, oldtop, size, oldsize
local repeated = {}
if window > 0 then
  size, oldsize = redis.call('SCARD', recent), redis.call('SCARD', older)
  local state = redis.call('GET', known)
  local caller, callbase, was, oldwas
  if state then caller, callbase, top, oldtop, was, oldwas = cmsgpack.unpack(state) end
  if was ~= size or oldwas ~= oldsize then
    caller = nil
    top = size == 0 and nothing or everything
    oldtop = oldsize == 0 and nothing or everything
  end
  base = math.max(top, oldtop)
  if caller == call then base = callbase end
  local suspects, numbers = {}, {}
  for m = 1, n do
    if stamps[m] <= base then
      suspects[#suspects+1] = ids[m]
      numbers[#numbers+1] = m
    end
  end
  if #suspects > 0 then
    local a = redis.call('SMISMEMBER', recent, unpack(suspects))
    local b = redis.call('SMISMEMBER', older, unpack(suspects))
    for k, m in ipairs(numbers) do
      if a[k] == 1 or b[k] == 1 then repeated[m] = true end
    end
  end
end
local added, new, failed, errors = {}, {}, {}, {}
for m = 1, n do
  local lane, id = lanes[m], ids[m]
  if not failed[lane] and not repeated[m] and not new[id] then
    local answer = redis.pcall('XADD', stream, '*', unpack(items, first[m], last[m]))
    if type(answer) == 'table' then
      errors[#errors+1] = m
      errors[#errors+1] = answer.err
      if lane ~= 0 then failed[lane] = true end
    elseif window > 0 then
      added[#added+1] = id
      new[id] = true
      if stamps[m] > top then top = stamps[m] end
    end
  end
end
if window > 0 then
  if #added > 0 then size = size + redis.call('SADD', recent, unpack(added)) end
  redis.call('PEXPIRE', recent, ARGV[2])
  redis.call('PEXPIRE', older, ARGV[2])
  if size >= window then
    redis.call('UNLINK', older)
    redis.call('RENAME', recent, older)
    top, oldtop, size, oldsize = nothing, top, 0, size
  end
  redis.call('SET', known, cmsgpack.pack(call, base, top, oldtop, size, oldsize), 'PX', ARGV[2])
end
if ARGV[4] == 'MAXLEN' then
  redis.call('XTRIM', stream, 'MAXLEN', '~', ARGV[5])
elseif ARGV[4] == 'MAXAGE' then
  redis.call('XTRIM', stream, 'MINID', '~', string.format('%.0f', redis.call('TIME')[1] * 1000 - ARGV[5]))
end
return errors`
