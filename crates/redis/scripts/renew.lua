-- Prolongs a lease that this owner still holds: never re-creates one, never shortens what is left.
--
-- Declares the lock key only, so that renewals keep working while a slot migrates. It needs no not-after: a
-- late renewal can only prolong a key that still carries this token.
--
-- KEYS[1]  string  the lock key
--
-- ARGV[1]  text    owner token
-- ARGV[2]  ms      TTL
--
-- Replies:
--   1                 it lasts for at least the TTL again
--   holder            the value of the lock key, '' when it is gone
-- Errors: WRONGTYPE (the key is not a string).

local holder = redis.call('GET', KEYS[1])
--[[without:renew-only-existing]]-- if not holder then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1 end
if not holder then return '' end
if holder ~= ARGV[1] then return holder end --[[rule:compare-on-renew]]
if redis.call('PTTL', KEYS[1]) >= tonumber(ARGV[2]) then return 1 end --[[rule:renew-never-shortens]]
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
