-- Replaces the record of an operation under the lease of its name, and gives the name back as `release` does. If
-- the record cannot be written, nothing is changed.
--
-- KEYS[1]  string  the lock key
-- KEYS[2]  zset    the queue of the name
-- KEYS[3]  string  the last fencing token
-- KEYS[4]  string  the record
--
-- ARGV[1]  text    owner token
-- ARGV[2]  text    prefix of wake channels
-- ARGV[3]  ms      keep the name taken, by nobody, for this long; 0 = free it
-- ARGV[4]  text    the value of a name that is kept
-- ARGV[5…] text    queue entries of this owner, and after them the last three: what the record must be now ('' = there
--                  must be none), what it becomes, and how many ms it is kept
--
-- Replies:
--   those of `release`: the record is written
--   'not-held', record     this owner does not hold the name; the record as it is, '' when there is none
--   'differs', record      it is another one than expected
-- Errors: WRONGTYPE (a key is not of its type).

-- What is left of ARGV is what `release` takes.
local retain, record, expected = table.remove(ARGV), table.remove(ARGV), table.remove(ARGV)

local current = redis.call('GET', KEYS[4]) or ''
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return { 'not-held', current } end --[[rule:record-under-lease]]
if current ~= expected then return { 'differs', current } end --[[rule:record-compare]]
redis.call('SET', KEYS[4], record, 'PX', retain)

--@include release
