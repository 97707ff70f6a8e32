-- Leasehold: seal and check, for what is kept in Redis or Valkey itself. Version 1.
--
-- Runs one command on one key, for a holder with a current fencing token only, and seals the key with that token in
-- the same step. Read with it before you write with it: a newer holder's read then fences the older one out.
--
--   leasehold sql redis > guarded.lua
--   redis-cli -e --eval guarded.lua stock:7 'guard:{stock:7}' , 34 owner-a lock: GET
--   redis-cli -e --eval guarded.lua stock:7 'guard:{stock:7}' , 34 owner-a lock: SET 12
--
-- (-e, from redis-cli 7 on, makes a refusal a failure of the command.)
--
-- In Cluster both keys must lie in one slot: `guard:{KEY}` does, or `guard:KEY` where KEY has a hash tag already.
-- Let the guard key never expire, nor be evicted, while a holder with an older token may still run.
--
-- KEYS[1]  any     the key that is protected
-- KEYS[2]  hash    its guard: the newest token, its owner and namespace
--
-- ARGV[1]  number  fencing token
-- ARGV[2]  text    any text that only this holder has; never the owner token itself, which is a secret
-- ARGV[3]  text    namespace of the lock, `lock:` unless you chose another
-- ARGV[4]  text    the command
-- ARGV[5…] text    its arguments after the key
--
-- Replies: what the command replies.
-- Errors, with nothing changed: LEASEHOLDFENCED mine=33 newest=34; LEASEHOLDNAMESPACE sealed_under=…;
--   LEASEHOLDARGUMENT; WRONGTYPE (the guard is not a hash). A command's own error leaves the seal.

local token, owner, namespace, command = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if #KEYS ~= 2 or KEYS[1] == KEYS[2] then
  return redis.error_reply('LEASEHOLDARGUMENT give two keys: the one that is protected, and its guard')
end

-- Whole numbers below 2^53 are compared without loss.
local mine = token and #token <= 16 and string.find(token, '^[1-9]%d*$') and tonumber(token)
if not mine or mine > 9007199254740991 or not command or owner == '' or #owner > 200 or #namespace > 128 then
  return redis.error_reply('LEASEHOLDARGUMENT give token (1 to 2^53-1), owner, namespace and a command')
end

local seen = redis.call('HMGET', KEYS[2], 'fence', 'owner', 'namespace')
local newest = seen[1] and tonumber(seen[1])
if newest and seen[3] ~= namespace then
  return redis.error_reply('LEASEHOLDNAMESPACE sealed_under=' .. seen[3])
end
if newest and not (newest < mine or (newest == mine and seen[2] == owner)) then
  return redis.error_reply('LEASEHOLDFENCED mine=' .. token .. ' newest=' .. seen[1])
end
if newest ~= mine then
  redis.call('HSET', KEYS[2], 'fence', token, 'owner', owner, 'namespace', namespace)
end
return redis.pcall(command, KEYS[1], unpack(ARGV, 5))
