-- Tries every command and key that the other scripts use, in a way that changes nothing, and says what the
-- server refuses: so that a missing right is known at connect and not first at a release.
--
-- KEYS[1]  string  a lock key that no name has
-- KEYS[2]  zset    its queue
-- KEYS[3]  string  the last fencing token
--
-- ARGV[1]  text    the wake channel of this connection
--
-- Replies:
--   pairs of a command and the server's error, for those that were refused

local refused = {}

local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    local command = (select(1, ...))
    if command == 'PUBSUB' then command = 'PUBSUB|NUMSUB' end
    refused[#refused + 1] = command
    refused[#refused + 1] = reply.err
    return nil
  end
  return reply
end

try('TIME')
try('GET', KEYS[1])
try('PTTL', KEYS[1])
try('EXISTS', KEYS[2])
try('ZRANGE', KEYS[2], 0, 0)
try('ZRANK', KEYS[2], 'probe')
try('ZSCORE', KEYS[2], 'probe')
-- None of these changes a key that does not exist.
try('SET', KEYS[1], 'probe', 'PX', 1, 'XX')
try('PEXPIRE', KEYS[1], 1)
try('DEL', KEYS[1])
try('ZADD', KEYS[2], 'XX', 0, 'probe')
try('ZREM', KEYS[2], 'probe')
-- Writes what is there.
local last = try('GET', KEYS[3])
if last then try('SET', KEYS[3], last, 'XX') end
try('PUBSUB', 'NUMSUB', ARGV[1])
-- Format version 0: every client ignores it.
try('PUBLISH', ARGV[1], '0')

return refused
