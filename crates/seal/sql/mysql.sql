-- Leasehold: seal and check, for MariaDB 10.6 or newer and MySQL 8.0.29 or newer. Schema version 1.
--
--   leasehold sql mysql | mariadb shop            or: | mysql shop
--
-- Running it again changes nothing. A driver takes it statement by statement, without the DELIMITER lines and
-- the // after the procedure. Whoever seals needs
--   GRANT EXECUTE ON PROCEDURE leasehold_seal_v1 TO app; GRANT SELECT, INSERT, UPDATE ON leasehold_guard TO app;
--
-- In the transaction that does the work, before its first read:
--
--   START TRANSACTION;                            -- not WITH CONSISTENT SNAPSHOT
--   CALL leasehold_seal_v1('shipment:1001', :fencing_token, :owner, 'lock:');
--   SELECT … ; UPDATE … ;                         -- as often as needed
--   COMMIT;
--
--   resource    what is protected, 1 to 512 bytes; need not be the name of the lock
--   fence       the fencing token that came with the lease
--   owner       any text that only this holder has, 1 to 200 bytes; never the owner token itself, which is a secret
--   namespace   that of the lock, `lock:` unless you chose another: tokens of two namespaces cannot be compared
--
-- It waits while another transaction has sealed the same resource and is not over. If it fails, by whatever
-- error, it has rolled the transaction back. An error does not end a transaction here as it does in PostgreSQL:
-- so that a program that overlooks the error writes nothing, it is left in an empty READ ONLY transaction, in
-- which every write fails with error 1792 until the program says ROLLBACK (or COMMIT, or begins another).
--
--   error 1644, SQLSTATE LH001  `leasehold: fenced: mine=33 newest=34`: a newer holder has sealed the resource
--   error 1644, SQLSTATE LH002  the resource was sealed under another namespace
--   error 1644, SQLSTATE LH003  an argument cannot be used; 0 and NULL are no fencing tokens
--   error 1644, SQLSTATE LH005  there is no transaction: with autocommit, nothing holds the seal
--   error 1644, SQLSTATE LH006  this transaction has read before, and somebody has sealed since: begin anew
--
-- Never delete a guard row while a holder with an older token may still run. Rows whose sealed_at lies further
-- back than any process of yours lives can go.

-- Bytes, and not characters of a collation: 'a', 'A' and 'a ' are three resources.
CREATE TABLE IF NOT EXISTS leasehold_guard (
    resource  VARBINARY(512) NOT NULL PRIMARY KEY,
    fence     BIGINT         NOT NULL,
    owner     VARBINARY(200) NOT NULL,
    namespace VARBINARY(128) NOT NULL,
    sealed_at DATETIME(6)    NOT NULL
) ENGINE = InnoDB;

DELIMITER //
CREATE PROCEDURE IF NOT EXISTS leasehold_seal_v1(
    IN p_resource  TEXT CHARACTER SET utf8mb4,
    IN p_fence     BIGINT,
    IN p_owner     TEXT CHARACTER SET utf8mb4,
    IN p_namespace TEXT CHARACTER SET utf8mb4
)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_resource VARBINARY(512);
    DECLARE v_fence BIGINT;
    DECLARE v_owner VARBINARY(200);
    DECLARE v_namespace VARBINARY(128);
    DECLARE v_sealed_at DATETIME(6);
    DECLARE v_seen BIGINT;
    DECLARE v_in_transaction BOOLEAN DEFAULT TRUE;
    DECLARE v_problem VARCHAR(128) CHARACTER SET utf8mb4;

    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        IF v_in_transaction THEN
            ROLLBACK;
            START TRANSACTION READ ONLY;
        END IF;
        RESIGNAL;
    END;

    -- Without a transaction a savepoint is forgotten at once.
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET v_in_transaction = FALSE;
        SAVEPOINT leasehold_seal;
        RELEASE SAVEPOINT leasehold_seal;
    END;
    IF NOT v_in_transaction THEN
        SIGNAL SQLSTATE 'LH005' SET MESSAGE_TEXT = 'leasehold: no transaction: START TRANSACTION first, then seal';
    END IF;

    IF (p_fence BETWEEN 1 AND 9007199254740991
            AND OCTET_LENGTH(p_resource) BETWEEN 1 AND 512
            AND OCTET_LENGTH(p_owner) BETWEEN 1 AND 200
            AND OCTET_LENGTH(p_namespace) <= 128) IS NOT TRUE THEN
        SIGNAL SQLSTATE 'LH003' SET MESSAGE_TEXT =
            'leasehold: an argument cannot be used: fence 1 to 2^53-1, resource 1 to 512, owner 1 to 200, namespace 0 to 128 bytes';
    END IF;
    SET v_resource = p_resource;

    -- Makes the row if it is missing, and locks it in any case, until the transaction is over.
    INSERT INTO leasehold_guard (resource, fence, owner, namespace, sealed_at)
    VALUES (v_resource, p_fence, p_owner, p_namespace, SYSDATE(6))
    ON DUPLICATE KEY UPDATE resource = VALUES(resource);

    SELECT fence, owner, namespace, sealed_at INTO v_fence, v_owner, v_namespace, v_sealed_at
    FROM leasehold_guard WHERE resource = v_resource FOR UPDATE;

    -- Without a lock, a transaction reads what was there at its first read. If it does not see the last seal, it
    -- would not see either what was written under it.
    SELECT COUNT(*) INTO v_seen FROM leasehold_guard WHERE resource = v_resource AND sealed_at = v_sealed_at;
    IF v_seen = 0 THEN
        SIGNAL SQLSTATE 'LH006' SET MESSAGE_TEXT = 'leasehold: read before the seal: seal first, or read FOR UPDATE';
    END IF;

    IF v_namespace <> CAST(p_namespace AS BINARY) THEN
        SET v_problem = CONCAT('leasehold: another namespace: sealed_under=', LEFT(v_namespace, 80));
        SIGNAL SQLSTATE 'LH002' SET MESSAGE_TEXT = v_problem;
    END IF;
    IF NOT (v_fence < p_fence OR (v_fence = p_fence AND v_owner = CAST(p_owner AS BINARY))) THEN
        SET v_problem = CONCAT('leasehold: fenced: mine=', p_fence, ' newest=', v_fence);
        SIGNAL SQLSTATE 'LH001' SET MESSAGE_TEXT = v_problem;
    END IF;

    UPDATE leasehold_guard SET fence = p_fence, owner = p_owner, sealed_at = SYSDATE(6) WHERE resource = v_resource;
END//
DELIMITER ;
