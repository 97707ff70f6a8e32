-- Takes a name if it is free and nobody is queued for it, else reports who holds it, and queues the owner
-- when asked to.
--
-- KEYS[1]  string  the lock key
-- KEYS[2]  zset    the queue of the name
-- KEYS[3]  string  the last fencing token
--
-- ARGV[1]  text    owner token
-- ARGV[2]  ms      TTL
-- ARGV[3]  us      not-after, in server time: later than this, nothing is done
-- ARGV[4]  text    prefix of wake channels
-- ARGV[5]  text    queue entry; '' = do not wait
-- ARGV[6]  us      ticket of an earlier reply; '' = none
-- ARGV[7…] text    earlier entries of this owner, on connections since dropped
--
-- Replies:
--   'fencing token' .. ' ' .. 'now'     granted for at least the TTL
--   'late', now
--   'busy', holder, remaining ms, now
--   'queued', holder, remaining ms, now, ticket, rank
-- where holder is the value of the lock key, or '' when a waiter was served in this step (remaining: its
-- claim) or when only dead waiters were removed (remaining: 0; ask again at once).
-- Errors: WRONGTYPE (the key is not a string), BADFENCE.

--@include mint

-- A queue has no waiter that has not asked again for this long: waiters ask at least every 20 s.
local QUEUE_TTL_MS = 60000

local token, ttl, prefix, entry, ticket = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[5], ARGV[6]

if now > tonumber(ARGV[3]) then return { 'late', now_text } end --[[rule:not-after]]

-- The usual case comes first, before the functions that only the others need are made.
local set = redis.call('EXISTS', KEYS[2]) == 0 and redis.pcall('SET', KEYS[1], token, 'NX', 'PX', ttl)
if set and set.err then
  -- A full server refuses this also where the name is taken, by this owner perhaps.
  if not string.find(set.err, 'OOM', 1, true) then return set end
elseif set then
  local fence = mint()
  if fence then return fence .. ' ' .. now_text end
  redis.call('DEL', KEYS[1])
  return fence_error()
end

--@include serve

local function leave_queue()
  if entry ~= '' then redis.call('ZREM', KEYS[2], entry) end
  if ARGV[7] then redis.call('ZREM', KEYS[2], unpack(ARGV, 7)) end
end

-- Queues, in the oldest place this owner was ever given.
local function enqueue()
  local function keep_older(score)
    if score and (ticket == '' or tonumber(score) < tonumber(ticket)) then ticket = score end
  end
  keep_older(redis.call('ZSCORE', KEYS[2], entry))
  for i = 7, #ARGV do
    keep_older(redis.call('ZSCORE', KEYS[2], ARGV[i]))
  end
  if ARGV[7] then redis.call('ZREM', KEYS[2], unpack(ARGV, 7)) end
  if ticket == '' then ticket = now_text end
  redis.call('ZADD', KEYS[2], ticket, entry)
  if redis.call('PTTL', KEYS[2]) < QUEUE_TTL_MS then redis.call('PEXPIRE', KEYS[2], QUEUE_TTL_MS) end
end

local holder = redis.call('GET', KEYS[1])

if holder == token then --[[rule:same-owner-on-retry]]
--[[without:same-owner-on-retry]]-- if false then
  -- Before minting: a full server lets a script that has written something write on, and a lease that was handed
  -- over to a waiter who polls would otherwise end before its waiter learns of it.
  if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
  local fence = mint()
  if not fence then return fence_error() end
  if entry ~= '' then
    local was_head = has_first_entry(5)
    leave_queue()
    -- The next one must know that it is the one who polls at the head now.
    if was_head then tell_head(prefix, redis.call('PTTL', KEYS[1])) end
  end
  return fence .. ' ' .. now_text
end

local remaining
if holder then
  remaining = redis.call('PTTL', KEYS[1])
  if entry ~= '' then enqueue() end
else
  if entry ~= '' then enqueue() end
  local outcome, claim = serve(prefix, token, true)
  if outcome == 'me' or outcome == 'nobody' then
    leave_queue()
    local fence = mint()
    if not fence then return fence_error() end
    redis.call('SET', KEYS[1], token, 'PX', ttl)
    tell_head(prefix, ttl)
    return fence .. ' ' .. now_text
  end
  if outcome == 'more' then redis.call('DEL', KEYS[1]) end
  holder, remaining = '', claim or 0
end

if entry == '' then return { 'busy', holder, remaining, now_text } end
return { 'queued', holder, remaining, now_text, ticket, redis.call('ZRANK', KEYS[2], entry) or 0 }
