//! The tools of this repository as functions, so that tests can call them: pages that are generated from the tests.

pub mod field_cases;
pub mod guards;
pub mod page;
pub mod sources;

use std::path::PathBuf;

/// The folder of the repository.
pub fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
