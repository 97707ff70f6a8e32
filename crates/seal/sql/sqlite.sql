-- Leasehold: seal and check, for SQLite 3.24 or newer. Schema version 1.
--
--   leasehold sql sqlite | sqlite3 shop.db
--
-- Running it again changes nothing. It may stand in a migration as it is.
--
-- In the transaction that does the work, before its first read:
--
--   BEGIN IMMEDIATE;
--   INSERT INTO leasehold_seal_v1 (resource, fence, owner, namespace)
--     VALUES ('shipment:1001', :fencing_token, :owner, 'lock:');
--   SELECT … ; UPDATE … ;                         -- as often as needed
--   COMMIT;
--
--   resource    what is protected, 1 to 512 bytes; need not be the name of the lock
--   fence       the fencing token that came with the lease
--   owner       any text that only this holder has, 1 to 200 bytes; never the owner token itself, which is a secret
--   namespace   that of the lock, `lock:` unless you chose another: tokens of two namespaces cannot be compared
--
-- If it fails with one of these messages, SQLite has rolled the transaction back:
--
--   leasehold: fenced               a newer holder has sealed the resource; its token is the `fence` of
--                                   leasehold_guard
--   leasehold: another namespace    the resource was sealed under another namespace
--   leasehold: schema               leasehold_guard was changed
--   leasehold: argument             an argument cannot be used; 0 and NULL are no fencing tokens
--
-- The transaction is over then, and a statement that follows commits by itself: stop at the error (`.bail on` in
-- the sqlite3 program), and put `AND lock_token < :fencing_token` into updates where you cannot be sure of that.
-- BEGIN without IMMEDIATE works too, unless something was read before the seal: then SQLite may say
-- SQLITE_BUSY_SNAPSHOT, because another process has written since, and the transaction has to begin anew.
--
-- Never delete a guard row while a holder with an older token may still run. Rows whose sealed_at lies further
-- back than any process of yours lives can go.

CREATE TABLE IF NOT EXISTS leasehold_guard (
    resource  TEXT    NOT NULL PRIMARY KEY,
    fence     INTEGER NOT NULL,
    owner     TEXT    NOT NULL,
    namespace TEXT    NOT NULL,
    sealed_at TEXT    NOT NULL                  -- UTC
) WITHOUT ROWID;

CREATE VIEW IF NOT EXISTS leasehold_seal_v1 AS SELECT resource, fence, owner, namespace FROM leasehold_guard;

CREATE TRIGGER IF NOT EXISTS leasehold_seal_v1_insert INSTEAD OF INSERT ON leasehold_seal_v1
BEGIN
    SELECT RAISE(ROLLBACK, 'leasehold: argument')
    WHERE (typeof(new.fence) = 'integer' AND new.fence BETWEEN 1 AND 9007199254740991
           AND typeof(new.resource) = 'text' AND length(CAST(new.resource AS BLOB)) BETWEEN 1 AND 512
           AND typeof(new.owner) = 'text' AND length(CAST(new.owner AS BLOB)) BETWEEN 1 AND 200
           AND typeof(new.namespace) = 'text' AND length(CAST(new.namespace AS BLOB)) <= 128) IS NOT 1;

    -- SQLite lets a column of text hold a number, and then no number is larger.
    SELECT RAISE(ROLLBACK, 'leasehold: schema')
    FROM leasehold_guard WHERE resource = new.resource AND typeof(fence) <> 'integer';

    SELECT RAISE(ROLLBACK, 'leasehold: another namespace')
    FROM leasehold_guard WHERE resource = new.resource AND namespace <> new.namespace;

    SELECT RAISE(ROLLBACK, 'leasehold: fenced')
    FROM leasehold_guard WHERE resource = new.resource
        AND NOT (fence < new.fence OR (fence = new.fence AND owner = new.owner));

    INSERT INTO leasehold_guard (resource, fence, owner, namespace, sealed_at)
    VALUES (new.resource, new.fence, new.owner, new.namespace, strftime('%Y-%m-%d %H:%M:%f', 'now'))
    ON CONFLICT (resource) DO UPDATE
        SET fence = excluded.fence, owner = excluded.owner, sealed_at = excluded.sealed_at;
END;
