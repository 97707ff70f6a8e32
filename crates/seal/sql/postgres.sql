-- Leasehold: seal and check, for PostgreSQL 13 or newer. Schema version 1.
--
--   leasehold sql postgres | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"
--
-- Running it again changes nothing. It may stand in a migration as it is. Whoever seals needs
--   GRANT SELECT, INSERT, UPDATE ON leasehold_guard TO app;
--
-- In the transaction that does the work, before its first read:
--
--   BEGIN;
--   SELECT leasehold_seal_v1('shipment:1001', :fencing_token, :owner, 'lock:');
--   SELECT … ; UPDATE … ;                         -- as often as needed
--   COMMIT;
--
--   resource    what is protected, 1 to 512 bytes; need not be the name of the lock
--   fence       the fencing token that came with the lease
--   owner       any text that only this holder has, 1 to 200 bytes; never the owner token itself, which is a secret
--   namespace   that of the lock, `lock:` unless you chose another: tokens of two namespaces cannot be compared
--
-- It waits while another transaction has sealed the same resource and is not over. If a newer holder has sealed
-- it, it fails, and PostgreSQL refuses everything else in this transaction:
--
--   LH001  fenced: a newer holder has sealed the resource; DETAIL is `mine=33 newest=34`
--   LH002  the resource was sealed under another namespace
--   LH003  an argument cannot be used; 0 and NULL are no fencing tokens
--   LH004  not sealed: only from leasehold_require_seal_v1, below
--
-- Never delete a guard row while a holder with an older token may still run. Rows whose sealed_at lies further
-- back than any process of yours lives can go.

CREATE TABLE IF NOT EXISTS leasehold_guard (
    resource  text        NOT NULL PRIMARY KEY,
    fence     bigint      NOT NULL,
    owner     text        NOT NULL,
    namespace text        NOT NULL,
    sealed_at timestamptz NOT NULL,
    sealed_in xid8        NOT NULL        -- the transaction that sealed last
);

CREATE OR REPLACE FUNCTION leasehold_seal_v1(p_resource text, p_fence bigint, p_owner text, p_namespace text)
RETURNS void
LANGUAGE plpgsql
-- The table beside this function, whatever the caller's path has before it.
SET search_path FROM CURRENT
AS $leasehold$
DECLARE
    seen record;
BEGIN
    IF (p_fence BETWEEN 1 AND 9007199254740991
            AND octet_length(p_resource) BETWEEN 1 AND 512
            AND octet_length(p_owner) BETWEEN 1 AND 200
            AND octet_length(p_namespace) <= 128) IS NOT TRUE THEN
        RAISE EXCEPTION 'leasehold: an argument cannot be used: resource %, fence %', p_resource, p_fence
            USING ERRCODE = 'LH003',
                  HINT = 'A fencing token is 1 to 2^53-1; resource, owner and namespace have 1 to 512, 1 to 200 and 0 to 128 bytes.';
    END IF;

    -- The row stays locked until the transaction is over: nobody else seals this resource meanwhile.
    INSERT INTO leasehold_guard AS guard (resource, fence, owner, namespace, sealed_at, sealed_in)
    VALUES (p_resource, p_fence, p_owner, p_namespace, clock_timestamp(), pg_current_xact_id())
    ON CONFLICT (resource) DO UPDATE
        SET fence = excluded.fence, owner = excluded.owner, sealed_at = excluded.sealed_at,
            sealed_in = excluded.sealed_in
        WHERE guard.namespace = excluded.namespace
          AND (guard.fence < p_fence OR (guard.fence = p_fence AND guard.owner = p_owner));
    IF FOUND THEN
        RETURN;
    END IF;

    SELECT fence, namespace INTO seen FROM leasehold_guard WHERE resource = p_resource;
    IF seen.namespace <> p_namespace THEN
        RAISE EXCEPTION 'leasehold: % was sealed under the namespace "%", and this token is of "%"',
                p_resource, seen.namespace, p_namespace
            USING ERRCODE = 'LH002', DETAIL = format('sealed_under=%s', seen.namespace),
                  HINT = 'Fencing tokens of two namespaces cannot be compared. If the lock has moved, change the namespace in leasehold_guard once.';
    END IF;
    RAISE EXCEPTION 'leasehold: fenced: % was sealed under fencing token %, and this one is %',
            p_resource, seen.fence, p_fence
        USING ERRCODE = 'LH001', DETAIL = format('mine=%s newest=%s', p_fence, seen.fence),
              HINT = 'A newer holder of the lock was here: stop, and acquire again.';
END
$leasehold$;

-- Refuses writers who bring no token. Attach it to your own tables, with what makes the resource:
--
--   CREATE TRIGGER sealed BEFORE INSERT OR UPDATE OR DELETE ON shipments
--     FOR EACH ROW EXECUTE FUNCTION leasehold_require_seal_v1('shipment:', 'id');   -- prefix, column
--   CREATE TRIGGER sealed_truncate BEFORE TRUNCATE ON shipments
--     FOR EACH STATEMENT EXECUTE FUNCTION leasehold_require_seal_v1('shipments');   -- one resource for all
--
-- A write then passes only in a transaction that has sealed that resource.
CREATE OR REPLACE FUNCTION leasehold_require_seal_v1()
RETURNS trigger
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $leasehold$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY CASE
        WHEN TG_NARGS = 1 THEN ARRAY[TG_ARGV[0]]
        -- Both, for an update may move a row from one resource to another.
        WHEN TG_NARGS = 2 AND TG_OP = 'UPDATE' THEN
            ARRAY[TG_ARGV[0] || (to_jsonb(OLD) ->> TG_ARGV[1]), TG_ARGV[0] || (to_jsonb(NEW) ->> TG_ARGV[1])]
        WHEN TG_NARGS = 2 AND TG_OP = 'INSERT' THEN ARRAY[TG_ARGV[0] || (to_jsonb(NEW) ->> TG_ARGV[1])]
        WHEN TG_NARGS = 2 AND TG_OP = 'DELETE' THEN ARRAY[TG_ARGV[0] || (to_jsonb(OLD) ->> TG_ARGV[1])]
        ELSE ARRAY[NULL]
    END LOOP
        IF wanted IS NULL THEN
            RAISE EXCEPTION 'leasehold: the trigger % on % names no resource', TG_NAME, TG_TABLE_NAME
                USING ERRCODE = 'LH003', HINT = 'Give it one resource, or a prefix and a column that is never NULL.';
        END IF;
        IF NOT EXISTS (SELECT FROM leasehold_guard
                       WHERE resource = wanted AND sealed_in = pg_current_xact_id_if_assigned()) THEN
            RAISE EXCEPTION 'leasehold: not sealed: this transaction writes % without a fencing token', wanted
                USING ERRCODE = 'LH004', HINT = 'Call leasehold_seal_v1 first, in the same transaction.';
        END IF;
    END LOOP;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END
$leasehold$;
