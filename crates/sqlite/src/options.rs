//! What can be chosen about the embedded store, and where the file of `local` lies.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{COMMAND_TIMEOUT, Error, Namespace};

use crate::environment::Environment;
use crate::file::StoreFile;

/// How to open the store.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// Keeps the names of different applications in one file apart; `lock:` by default.
    pub namespace: Namespace,
    /// How long one operation may wait for other processes' transactions; 1 s by default.
    pub command_timeout: Duration,
    /// Create the file if it is missing; `true` by default. A program that only looks should not.
    pub create: bool,
    /// Use the file even on a file system that other machines may share, or that does not keep its promises
    /// about locks; `false` by default. Right only if you know that one kernel alone uses the file.
    pub any_file_system: bool,
    /// Clocks and boot id; those of the system by default.
    pub environment: Option<Environment>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            namespace: Namespace::default(),
            command_timeout: COMMAND_TIMEOUT,
            create: true,
            any_file_system: false,
            environment: None,
        }
    }
}

/// The file of the store `local`: `$XDG_STATE_HOME/leasehold/locks.db`, or `~/.local/state/leasehold/locks.db`
/// without that variable; on macOS `~/Library/Application Support/leasehold/locks.db`. Its directory is created,
/// for this user only, if it is missing; the file is not.
///
/// # Errors
/// `Config` when the environment names no home directory, `Denied` or `Unavailable` when the directory cannot
/// be created.
pub fn default_path() -> Result<PathBuf, Error> {
    let path = default_path_from(|variable| std::env::var_os(variable))?;
    StoreFile::new(&path)?.create_directories()?;
    Ok(path)
}

fn default_path_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, Error> {
    // A relative path there is invalid by the XDG specification, and would be another file in every directory.
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = if cfg!(target_os = "macos") { None } else { absolute("XDG_STATE_HOME") };
    let state = state.or_else(|| {
        let below = if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/state" };
        absolute("HOME").map(|home| home.join(below))
    });
    state.map(|state| state.join("leasehold").join("locks.db")).ok_or_else(|| {
        Error::config(
            "there is no state directory for the store local: set HOME or XDG_STATE_HOME to an absolute path, \
             or name a file with sqlite:PATH",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(variables: &[(&str, &str)]) -> Result<PathBuf, Error> {
        default_path_from(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[cfg(not(target_os = "macos"))]
    #[test]
    fn the_default_path_follows_the_xdg_rules() {
        let home = ("HOME", "/home/ada");
        assert_eq!(path(&[home]).unwrap(), PathBuf::from("/home/ada/.local/state/leasehold/locks.db"));
        assert_eq!(
            path(&[home, ("XDG_STATE_HOME", "/state")]).unwrap(),
            PathBuf::from("/state/leasehold/locks.db")
        );
        assert_eq!(
            path(&[home, ("XDG_STATE_HOME", "relative")]).unwrap(),
            PathBuf::from("/home/ada/.local/state/leasehold/locks.db")
        );
    }

    #[test]
    fn without_a_home_the_error_names_the_way_out() {
        let error = path(&[]).unwrap_err().to_string();
        assert!(error.contains("HOME") && error.contains("sqlite:PATH"), "{error}");
    }
}
