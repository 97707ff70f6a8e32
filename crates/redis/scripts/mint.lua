-- The server's time, read once, and minting. Included by scripts that may grant.
--
-- Uses KEYS[3], the last fencing token. Defines `now` (microseconds since 1970) and `now_text`, the same as text.

-- 2^53 - 1: the largest number that a double, and so Lua and JSON, carries without loss.
local LARGEST_TOKEN = 9007199254740991

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)

-- The next fencing token as text, recorded as the last one; nil when the counter is not usable (it is left as it
-- was). In all but the rarest cases the clock is ahead of the counter, so one command reads and writes it.
local function mint()
  local last = redis.pcall('SET', KEYS[3], now_text, 'GET')
  local previous = 0
  if last then
    if type(last) == 'table' then
      if string.find(last.err, 'WRONGTYPE', 1, true) then return nil end
      -- The server refuses to write: its reason is raised as it is.
      redis.call('SET', KEYS[3], now_text, 'GET')
    end
    previous = tonumber(last)
    if not previous or previous < 0 or previous % 1 ~= 0 or previous >= LARGEST_TOKEN then
      redis.call('SET', KEYS[3], last)
      return nil
    end
  end
  local token = now
  --[[without:clock-floor]]-- token = 0
  if previous >= token then token = previous + 1 end --[[rule:mint-per-grant]]
  --[[without:mint-per-grant]]-- token = math.max(previous, 1)
  if token == now then return now_text end
  local text = string.format('%.0f', token)
  redis.call('SET', KEYS[3], text)
  return text
end

-- What an acquire answers when the counter is not usable.
local function fence_error()
  return redis.error_reply('BADFENCE the fencing counter is not a whole number below 2^53')
end
