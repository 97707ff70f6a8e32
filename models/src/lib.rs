//! The exhaustive models of what Leasehold promises live in `tests/`: the protocol on Redis (`protocol`) and the seal
//! at a database (`seal`). They run no code of the other crates, and are a package of their own to be optimized.
