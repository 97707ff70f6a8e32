//! What a failover can break: a lease that the new primary never heard of is granted twice. Fencing tokens tell the
//! two apart, and a guarded resource refuses the stale one.
