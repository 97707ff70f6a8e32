-- Passing a free name to the first live waiter, and telling waiters. Included after `mint`.
--
-- Uses KEYS[1] (lock key) and KEYS[2] (queue). `prefix` is the prefix of wake channels.

-- What is popped as dead in one call: a hundred thousand of them would block the server for 185 ms.
local MOST_DEAD_PER_CALL = 100

-- The fields of a queue entry, or nil for an entry of another format version. The connection is that of the
-- waiter, or '-' and the server time in microseconds until which a waiter without one counts as polling.
local function read_entry(entry)
  local connection, claim, token = string.match(entry, '^1 (%S+) (%d+) (.+)$')
  return connection, tonumber(claim), token
end

local function polls(connection)
  return string.sub(connection, 1, 1) == '-'
end

-- Tells the first waiter that it is the first, and how long the present lease lasts.
--
-- It may come after a grant was published, so nothing in it fails: in a cluster a queue that has just become
-- empty cannot be read while its slot migrates.
local function tell_head(prefix, remaining)
  local head = redis.pcall('ZRANGE', KEYS[2], 0, 0)[1]
  if not head then return end
  local connection, _, token = read_entry(head)
  if not connection or polls(connection) then return end
  redis.pcall('PUBLISH', prefix .. connection, '1 next ' .. remaining .. ' ' .. token)
end

-- Whether one of the arguments from this one on is the entry of the first waiter.
local function has_first_entry(from)
  local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  for i = from, #ARGV do
    if ARGV[i] == head then return true end
  end
  return false
end

-- Whether somebody listens on a waiter's channel, or still polls. A caller that may not ask cannot hand over.
local function is_alive(prefix, connection)
  if polls(connection) then return now <= (tonumber(string.sub(connection, 2)) or 0) end
  local reply = redis.pcall('PUBSUB', 'NUMSUB', prefix .. connection)
  return not reply.err and reply[2] > 0
end

-- Gives the name to the first live waiter: 'handed' and its claim, 'nobody', or 'more' when a hundred dead
-- waiters were popped. When the caller's token is first it says 'me', or passes over it if it may not be served.
--
-- Nothing that can be refused comes after the PUBLISH of a grant. One that raises an error has delivered
-- nothing, so its waiter is passed over like a dead one and comes back to its place by its next poll.
local function serve(prefix, token_of_caller, may_be_me)
  for _ = 1, MOST_DEAD_PER_CALL do
    local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1] --[[rule:queue-order]]
    --[[without:queue-order]]-- local head = redis.call('ZREVRANGE', KEYS[2], 0, 0)[1]
    if not head then return 'nobody' end
    redis.call('ZREM', KEYS[2], head)
    local connection, claim, token = read_entry(head)
    local servable = connection ~= nil
    if servable and token == token_of_caller then
      if may_be_me then return 'me' end
      servable = false
    end
    servable = servable and is_alive(prefix, connection) --[[rule:skip-dead-waiters]]
    if servable then
      local fence = mint()
      if not fence then return 'nobody' end
      redis.call('SET', KEYS[1], token, 'PX', claim)
      local delivered = true
      if not polls(connection) then
        local message = '1 grant ' .. fence .. ' ' .. claim .. ' ' .. token
        local reply = redis.pcall('PUBLISH', prefix .. connection, message)
        delivered = type(reply) ~= 'table'
      end
      if delivered then
        tell_head(prefix, claim)
        return 'handed', claim
      end
    end
  end
  return 'more'
end
