//! The embedded store of Leasehold: one SQLite file shared by the processes of one machine.
