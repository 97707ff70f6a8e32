-- The second step of an acquire while the slot of the name migrates in a cluster: mints a fencing token for the
-- lock key that was taken before.
--
-- KEYS[1]  string  the last fencing token
--
-- Replies:
--   fencing token
-- Errors: BADFENCE.

--@include mint of KEYS[1]

return mint() or fence_error()
