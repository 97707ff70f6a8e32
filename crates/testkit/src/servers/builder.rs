//! How a server is configured before it starts. Owns the configuration file's content, not the process.

use std::fmt::Write;
use std::io;
use std::path::Path;

use super::{RedisServer, ServerKind};

/// Settings of a server about to be started; see [`RedisServer::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing starts before `start`"]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct ServerBuilder {
    pub(super) kind: ServerKind,
    lines: Vec<(String, String)>,
    pub(super) password: Option<String>,
    pub(super) login: Option<(String, String)>,
    acl: Option<String>,
    pub(super) unix_socket: bool,
    pub(super) append_only: bool,
    pub(super) environment: Vec<(String, String)>,
    pub(super) is_sentinel: bool,
    /// The configuration file is the server's: what it wrote there outlasts a restart.
    keep_config: bool,
}

impl ServerBuilder {
    pub(super) fn new(kind: ServerKind) -> Self {
        Self {
            kind,
            lines: Vec::new(),
            password: None,
            login: None,
            acl: None,
            unix_socket: false,
            append_only: false,
            environment: Vec::new(),
            is_sentinel: false,
            keep_config: false,
        }
    }

    /// Adds a line to the configuration file, later ones win. Not for `port`, `bind` and `dir`.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.into(), value.into()));
        self
    }

    /// Demands this password of the default user; may hold any character but a line end.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Loads users from an ACL file with this content. If it switches the default user off, say with
    /// [`admin_login`](Self::admin_login) how the test itself gets in.
    pub fn acl_file(mut self, content: &str) -> Self {
        self.acl = Some(content.into());
        self
    }

    /// The user and password with which [`RedisServer::command`] and its relatives log in.
    pub fn admin_login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.into(), password.into()));
        self
    }

    /// Also listens on a unix socket: [`RedisServer::unix_socket`].
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Writes every change to disk before it is answered, so that even a killed server keeps its data.
    pub fn append_only(mut self) -> Self {
        self.append_only = true;
        self
    }

    /// Sets an environment variable of the server's process, for instance to preload a library that fakes its clock.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// What the server itself wrote into its configuration file (`CONFIG REWRITE`) outlasts a restart.
    pub fn keep_config(mut self) -> Self {
        self.keep_config = true;
        self
    }

    /// It is a Sentinel: `sentinel` lines of the configuration say what it watches.
    pub(super) fn sentinel(mut self) -> Self {
        self.is_sentinel = true;
        self.keep_config()
    }

    /// Starts the server on a free loopback port and waits until it answers.
    ///
    /// # Errors
    /// When the machine has no such server, or it does not answer within 20 s; the end of its log is in the error.
    pub fn start(self) -> io::Result<RedisServer> {
        RedisServer::start_configured(self)
    }

    /// Writes `redis.conf` (and the ACL file) into the server's folder.
    pub(super) fn write_files(&self, folder: &Path, port: u16) -> io::Result<()> {
        let path = folder.join("redis.conf");
        if self.keep_config && path.exists() {
            return Ok(());
        }
        let folder_text = quoted(&folder.to_string_lossy());
        let mut text = format!("port {port}\nbind 127.0.0.1\ndir {folder_text}\ndaemonize no\n");
        if !self.is_sentinel {
            text += "save \"\"\nenable-debug-command local\n";
        }
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} {value}");
        };
        if self.append_only {
            line("appendonly", "yes");
            line("appendfsync", "always");
        }
        if let Some(password) = &self.password {
            line("requirepass", &quoted(password));
        }
        if self.unix_socket {
            line("unixsocket", &quoted(&socket_path(folder).to_string_lossy()));
        }
        if let Some(acl) = &self.acl {
            let path = folder.join("users.acl");
            std::fs::write(&path, acl)?;
            line("aclfile", &quoted(&path.to_string_lossy()));
        }
        for (name, value) in &self.lines {
            line(name, value);
        }
        std::fs::write(path, text)
    }
}

pub(super) fn socket_path(folder: &Path) -> std::path::PathBuf {
    folder.join("redis.sock")
}

/// A value as the configuration file wants it when it may hold spaces, quotes or `#`.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        assert_eq!(quoted(r#"a "b" \c"#), r#""a \"b\" \\c""#);
    }
}
