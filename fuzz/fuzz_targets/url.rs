//! See `url` in `crates/fuzz-entries`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| leasehold_fuzz_entries::url(data));
