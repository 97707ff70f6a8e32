//! The leasehold command.
