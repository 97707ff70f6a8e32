//! One running MariaDB, which stands for MySQL in the tests.

use std::fs::File;
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::keeper::Keeper;
use super::{DatabaseKind, log_of, run};
use crate::ports::PortLease;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const START_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// What a test needs: nothing has to survive.
const SETTINGS: [&str; 8] = [
    "--bind-address=127.0.0.1",
    "--skip-log-bin",
    "--skip-name-resolve",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=32M",
    "--innodb-lock-wait-timeout=20",
    "--max-connections=120",
    "--performance-schema=OFF",
];

/// A MariaDB server on a free loopback port, whom everybody may enter as `leasehold`.
#[derive(Debug)]
pub struct MariaDb {
    port: PortLease,
    keeper: Keeper,
}

impl MariaDb {
    /// The server that all tests of this process share. It is stopped and removed when the process ends.
    ///
    /// # Panics
    /// When it does not start; the end of its log is in the message. Ask
    /// [`DatabaseKind::is_to_be_tested`] first whether this machine has one.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<MariaDb> = OnceLock::new();
        SHARED.get_or_init(|| match Self::start() {
            Ok(server) => server,
            Err(error) => panic!("MariaDB did not start: {error}"),
        })
    }

    /// Starts a server.
    ///
    /// # Errors
    /// When this machine has none, or it does not answer within 60 s; the end of its log is in the error.
    pub fn start() -> io::Result<Self> {
        let server = Self { port: PortLease::take()?, keeper: Keeper::start("TERM")? };
        let mut command = server.server_command("mariadb-install-db")?;
        command.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        run(command)?;
        let mut command = server.server_command("mariadbd")?;
        command.arg(format!("--port={}", server.port())).args(SETTINGS);
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

    /// A URL for clients, with an empty database of this name, made when it is missing.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn url(&self, database: &str) -> io::Result<String> {
        self.root(&format!("CREATE DATABASE IF NOT EXISTS {database}"))?;
        Ok(format!("mysql://leasehold@127.0.0.1:{}/{database}", self.port()))
    }

    /// Runs a script with the `mariadb` program in the database, as a client of the network; what it printed,
    /// separated by tabs.
    ///
    /// # Errors
    /// When a statement fails; what it said is in the error.
    pub fn client(&self, database: &str, script: &str) -> io::Result<String> {
        let mut command = self.command("mariadb")?;
        command.args(["--protocol=TCP", "-h", "127.0.0.1", "-u", "leasehold", "-N", "-B"]);
        command.arg(format!("--port={}", self.port())).arg(database);
        feed(command, script)
    }

    /// Runs a script as root, over the local socket.
    ///
    /// # Errors
    /// When a statement fails; what it said is in the error.
    pub fn root(&self, script: &str) -> io::Result<String> {
        let mut command = self.command("mariadb")?;
        command.arg("--socket").arg(self.keeper.folder().join("sock")).args(["-u", "root", "-N", "-B"]);
        feed(command, script)
    }

    fn command(&self, name: &str) -> io::Result<Command> {
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, "no MariaDB on this machine; run scripts/servers");
        let mut command = Command::new(DatabaseKind::MariaDb.program(name).ok_or_else(missing)?);
        command.arg("--no-defaults").current_dir(self.keeper.folder());
        Ok(command)
    }

    fn server_command(&self, name: &str) -> io::Result<Command> {
        let mut command = self.command(name)?;
        let folder = self.keeper.folder();
        command.arg(format!("--datadir={}", folder.join("data").display()));
        command.arg(format!("--socket={}", folder.join("sock").display()));
        if rustix::process::geteuid().is_root() {
            // Root has to say that it means it.
            command.arg("--user=root");
        }
        Ok(command)
    }

    fn wait_until_ready(&self, child: &mut Child) -> io::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        let user = "CREATE USER IF NOT EXISTS leasehold@'%'; GRANT ALL ON *.* TO leasehold@'%'; \
                    REVOKE SUPER, READ_ONLY ADMIN ON *.* FROM leasehold@'%'";
        loop {
            if let Some(status) = child.try_wait()? {
                return Err(io::Error::other(format!("the server ended at once: {status}")));
            }
            match self.root(user) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => std::thread::sleep(START_POLL_INTERVAL),
            }
        }
    }
}

/// Gives a program its input and takes what it prints.
pub(super) fn feed(mut command: Command, input: &str) -> io::Result<String> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().ok_or_else(|| io::Error::other("no standard input"))?;
    let input = input.to_owned();
    // A program that stops at an error does not read the rest.
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    let written = writer.join().map_err(|_| io::Error::other("the input was not written"))?;
    if output.status.success() {
        written?;
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}
