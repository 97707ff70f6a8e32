-- Replaces the record of an operation under the lease of its name.
--
-- KEYS[1]  string  the lock key
-- KEYS[2]  string  the record
--
-- ARGV[1]  text    owner token
-- ARGV[2]  text    what the record must be now; '' = there must be none
-- ARGV[3]  text    what it becomes
-- ARGV[4]  ms      how long it is kept
--
-- Replies:
--   1                      it is written
--   'not-held', record     this owner does not hold the name; the record as it is, '' when there is none
--   'differs', record      it is another one than expected
-- Errors: WRONGTYPE (a key is not a string).

local current = redis.call('GET', KEYS[2]) or ''
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return { 'not-held', current } end --[[rule:record-under-lease]]
if current ~= ARGV[2] then return { 'differs', current } end --[[rule:record-compare]]
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return 1
