-- Gives a name back while its slot migrates in a cluster, when scripts on several keys are refused: nobody is
-- served, so the first waiter takes over when it asks.
--
-- KEYS[1]  string  the lock key
--
-- ARGV[1]  text    owner token
-- ARGV[2]  ms      keep the name taken, by nobody, for this long; 0 = free it
-- ARGV[3]  text    the value of a name that is kept
--
-- Replies:
--   1   freed
--   0   it was not this owner's
-- Errors: WRONGTYPE (the key is not a string).

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end --[[rule:compare-on-release]]
if tonumber(ARGV[2]) > 0 then
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2])
else
  redis.call('DEL', KEYS[1])
end
return 1
