-- The server's time, read once, and minting. Included by scripts that may grant.
--
-- Uses KEYS[3], the last fencing token. Defines `now` (microseconds since 1970) and `now_text`, the same as text.

-- 2^53 - 1: the largest number that a double, and so Lua and JSON, carries without loss.
local LARGEST_TOKEN = 9007199254740991

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)

-- The next fencing token as text, recorded as the last one; nil when the counter is not usable.
local function mint()
  local last = redis.pcall('GET', KEYS[3])
  if last then
    last = type(last) == 'string' and tonumber(last)
    if not last or last < 0 or last % 1 ~= 0 then return nil end
  else
    last = 0
  end
  local token = now
  --[[without:clock-floor]]-- token = 0
  if last >= token then token = last + 1 end --[[rule:mint-per-grant]]
  --[[without:mint-per-grant]]-- token = math.max(last, 1)
  if token > LARGEST_TOKEN then return nil end
  local text = token == now and now_text or string.format('%.0f', token)
  redis.call('SET', KEYS[3], text)
  return text
end

-- What an acquire answers when the counter is not usable.
local function fence_error()
  return redis.error_reply('BADFENCE the fencing counter is not a whole number below 2^53')
end
