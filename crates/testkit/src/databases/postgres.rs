//! One running PostgreSQL. It refuses to run as root, so there it runs as another user.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::keeper::{Keeper, User};
use super::{DatabaseKind, log_of, run};
use crate::ports::PortLease;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const START_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// What a test needs: nothing has to survive, and many connections are short.
const SETTINGS: [&str; 11] = [
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "autovacuum=off",
    "jit=off",
    "shared_buffers=16MB",
    "max_connections=80",
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "logging_collector=off",
    "lc_messages=C",
];

/// A PostgreSQL server on a free loopback port, whom everybody may enter as `leasehold`.
#[derive(Debug)]
pub struct Postgres {
    port: PortLease,
    keeper: Keeper,
}

impl Postgres {
    /// The server that all tests of this process share. It is stopped and removed when the process ends.
    ///
    /// # Panics
    /// When it does not start; the end of its log is in the message. Ask
    /// [`DatabaseKind::is_to_be_tested`] first whether this machine has one.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| match Self::start() {
            Ok(server) => server,
            Err(error) => panic!("PostgreSQL did not start: {error}"),
        })
    }

    /// Starts a server.
    ///
    /// # Errors
    /// When this machine has none, or it does not answer within 60 s; the end of its log is in the error.
    pub fn start() -> io::Result<Self> {
        // QUIT stops it at once, and lets it remove its shared memory, which KILL does not.
        let server = Self { port: PortLease::take()?, keeper: Keeper::start("QUIT")? };
        let user = User::unless_root_may(&["postgres", "nobody"])?;
        if let Some(user) = user {
            user.give(server.keeper.folder())?;
        }
        let mut command = server.command("initdb", user)?;
        command.arg("-D").arg(server.data()).args(["-U", "leasehold", "-A", "trust", "-E", "UTF8"]);
        command.args(["--locale=C", "--no-sync", "--no-instructions"]);
        run(command)?;
        let mut command = server.command("postgres", user)?;
        command.arg("-D").arg(server.data()).args(["-p", &server.port.port().to_string()]);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        let log = File::create(server.keeper.folder().join("server.log"))?;
        command.stdin(Stdio::null()).stderr(log.try_clone()?).stdout(log);
        let mut child = command.spawn()?;
        server.keeper.watch(&child)?;
        server.wait_until_ready(&mut child).map_err(|error| {
            io::Error::new(error.kind(), format!("{error}\n  {}", log_of(server.keeper.folder())))
        })?;
        Ok(server)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    /// A URL for clients, which starts with an empty schema of this name, made when it is missing.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn url(&self, schema: &str) -> io::Result<String> {
        self.psql("postgres", &format!("CREATE SCHEMA IF NOT EXISTS {schema}"))?;
        Ok(format!(
            "postgres://leasehold@127.0.0.1:{}/postgres?options=-csearch_path%3D{schema}",
            self.port()
        ))
    }

    /// Runs a script with `psql`, which stops at the first error, in the schema; what it printed, unaligned.
    ///
    /// # Errors
    /// When `psql` fails; what it said is in the error.
    pub fn psql(&self, schema: &str, script: &str) -> io::Result<String> {
        let mut command = self.command("psql", None)?;
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]);
        command.args(["-h", "127.0.0.1", "-p", &self.port().to_string(), "-U", "leasehold", "postgres"]);
        command.env("PGOPTIONS", format!("-csearch_path={schema} -cclient_min_messages=warning"));
        crate::databases::mariadb::feed(command, script)
    }

    fn command(&self, name: &str, user: Option<User>) -> io::Result<Command> {
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, "no PostgreSQL on this machine; run scripts/servers");
        let mut command = Command::new(DatabaseKind::Postgres.program(name).ok_or_else(missing)?);
        command.current_dir(self.keeper.folder()).env_remove("PGDATA").env("LC_ALL", "C");
        if let Some(user) = user {
            user.run_as(&mut command);
        }
        Ok(command)
    }

    fn data(&self) -> PathBuf {
        self.keeper.folder().join("data")
    }

    fn wait_until_ready(&self, child: &mut Child) -> io::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait()? {
                return Err(io::Error::other(format!("the server ended at once: {status}")));
            }
            match self.psql("public", "SELECT 1") {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => std::thread::sleep(START_POLL_INTERVAL),
            }
        }
    }
}
