-- Steps that several scripts share. A script names it in `include`, and it is put in front of the script.
--
-- Owns minting, the form of queue entries and messages, and passing a free name to the first live waiter.
-- The including script defines `now` (server time in microseconds, read once) and declares
-- KEYS[2] (queue) and KEYS[3] (fence). `prefix` is the prefix of wake channels.

-- A queue has no waiter that has not asked again for this long: waiters ask at least every 20 s.
local QUEUE_TTL_MS = 60000
-- What is popped as dead in one call: a hundred thousand of them would block the server for 185 ms.
local MOST_DEAD_PER_CALL = 100
-- 2^53 - 1: the largest number that a double, and so Lua and JSON, carries without loss.
local LARGEST_TOKEN = 9007199254740991

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- The next fencing token as text, recorded as the last one; nil when the counter is not usable.
local function mint()
  local last = redis.pcall('GET', KEYS[3])
  if not last then
    last = 0
  elseif type(last) == 'table' or not string.find(last, '^%d+$') then
    return nil
  end
  local token = last + 1 --[[rule:mint-per-grant]]
  --[[without:mint-per-grant]]-- local token = last > 0 and last or 1
  if token < now then token = now end --[[rule:clock-floor]] --[[rule:mint-per-grant]]
  if token > LARGEST_TOKEN then return nil end
  local text = string.format('%.0f', token)
  redis.call('SET', KEYS[3], text)
  return text
end

-- What an acquire answers when the counter is not usable.
local function fence_error()
  return redis.error_reply('BADFENCE the fencing counter is not a number below 2^53')
end

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
local function tell_head(prefix, remaining)
  local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not head then return end
  local connection, _, token = read_entry(head)
  if not connection or polls(connection) then return end
  redis.pcall('PUBLISH', prefix .. connection, '1 next ' .. remaining .. ' ' .. token)
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
