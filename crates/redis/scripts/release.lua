-- Gives a name back if this owner holds it, handing it to the first live waiter, and withdraws the owner from
-- the queue in any case.
--
-- KEYS[1]  string  the lock key
-- KEYS[2]  zset    the queue of the name
-- KEYS[3]  string  the last fencing token
--
-- ARGV[1]  text    owner token
-- ARGV[2]  text    prefix of wake channels
-- ARGV[3]  ms      keep the name taken, by nobody, for this long; 0 = free it
-- ARGV[4]  text    the value of a name that is kept
-- ARGV[5…] text    queue entries of this owner
--
-- Replies:
--   1                                     freed; nobody waits
--   'not-mine', now
--   'freed', now, 1 if it was handed over, else 0
-- Errors: WRONGTYPE (the key is not a string).

local token, prefix, keep = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- The usual case comes first, before the functions that only the others need are made.
if keep == 0 and not ARGV[5] and redis.call('EXISTS', KEYS[2]) == 0 and redis.call('GET', KEYS[1]) == token then
  redis.call('DEL', KEYS[1])
  return 1
end

--@include mint
--@include serve

local was_head = false
if ARGV[5] then
  was_head = has_first_entry(5)
  redis.call('ZREM', KEYS[2], unpack(ARGV, 5)) --[[rule:withdraw]]
end

if redis.call('GET', KEYS[1]) ~= token then --[[rule:compare-on-release]]
--[[without:compare-on-release]]-- if redis.call('EXISTS', KEYS[1]) == 0 then
  -- The next one must know that it is the one who polls at the head now.
  if was_head then tell_head(prefix, redis.call('PTTL', KEYS[1])) end
  return { 'not-mine', now_text }
end

if keep > 0 then --[[rule:min-hold]]
--[[without:min-hold]]-- if false then
  redis.call('SET', KEYS[1], ARGV[4], 'PX', keep)
  tell_head(prefix, keep)
  return { 'freed', now_text, 0 }
end

if serve(prefix, token, false) == 'handed' then return { 'freed', now_text, 1 } end
redis.call('DEL', KEYS[1])
return { 'freed', now_text, 0 }
