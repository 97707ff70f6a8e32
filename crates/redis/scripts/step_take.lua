-- The first step of an acquire while the slot of the name migrates in a cluster, when scripts on several keys are
-- refused: takes the lock key if it is free. The lease counts only after the two other steps: minting, and a
-- renewal that finds it still this owner's.
--
-- KEYS[1]  string  the lock key
--
-- ARGV[1]  text    owner token
-- ARGV[2]  ms      TTL
-- ARGV[3]  us      not-after, in server time: later than this, nothing is done
--
-- Replies:
--   'taken', now                     it is this owner's, for at least the TTL
--   'late', now
--   'busy', now, holder, remaining ms
-- Errors: WRONGTYPE (the key is not a string).

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)

if now > tonumber(ARGV[3]) then return { 'late', now_text } end --[[rule:not-after]]

local holder = redis.call('GET', KEYS[1])
if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return { 'taken', now_text }
end
if holder == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return { 'taken', now_text }
end
return { 'busy', now_text, holder, redis.call('PTTL', KEYS[1]) }
