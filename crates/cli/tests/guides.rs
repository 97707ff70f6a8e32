//! `docs/fencing.md` and `docs/choosing.md`, as they stand there: every command is run with the real `leasehold`, and
//! every statement by a real database, which must print what the guide says and refuse what it says. (Their Rust is
//! compiled with the documentation of `leasehold-seal`.)
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_testkit::databases::{DatabaseKind, MariaDb, Postgres};
use leasehold_testkit::servers::{RedisServer, ServerKind, kinds_to_test};
use tempfile::TempDir;

/// A fenced block: its words after the fence, and its lines.
struct Block {
    words: Vec<String>,
    text: String,
}

impl Block {
    fn is(&self, language: &str, database: &str) -> bool {
        self.words.first().is_some_and(|word| word == language)
            && self.words.get(1).is_some_and(|it| it == database)
    }

    /// The error that the block must end with.
    fn refused(&self) -> Option<&str> {
        let at = self.words.iter().position(|word| word == "refused")?;
        self.words.get(at + 1).map(String::as_str)
    }

    /// What the block must print.
    fn prints(&self) -> Vec<&str> {
        self.text.lines().filter_map(|line| Some(line.split_once("-- → ")?.1.trim())).collect()
    }
}

fn guide(name: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(words), None) => {
                let words = words.split(' ').map(str::to_owned).collect();
                open = Some(Block { words, text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{name}: a block is not closed");
    // Each is run by one of the tests below, or compiled.
    for block in &blocks {
        let known = match block.words[0].as_str() {
            "rust" => block.words.len() == 1,
            "sh" | "sql" => ["postgres", "mysql", "sqlite", "redis"].contains(&block.words[1].as_str()),
            "python" => block.words[1] == "sqlite",
            _ => false,
        };
        assert!(known, "{name}: no test knows {:?}", block.words);
    }
    blocks
}

/// Runs the SQL of a database in the order of the guide; how many blocks there were.
fn run_sql(blocks: &[Block], database: &str, mut run: impl FnMut(&str) -> std::io::Result<String>) -> usize {
    let blocks: Vec<_> = blocks.iter().filter(|block| block.is("sql", database)).collect();
    for block in &blocks {
        match (run(&block.text), block.refused()) {
            (Ok(printed), None) => {
                let printed: Vec<_> = printed.lines().filter(|line| !line.is_empty()).collect();
                assert_eq!(printed, block.prints(), "{}", block.text);
            }
            (Err(error), Some(refused)) => {
                assert!(error.to_string().contains(refused), "{refused} is not in {error}");
            }
            (outcome, _) => panic!("{outcome:?} came of {}", block.text),
        }
    }
    blocks.len()
}

/// A folder to run shell in, with the real command and other programs that know their server.
struct Shell(TempDir);

impl Shell {
    fn new() -> Self {
        let shell = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(shell.path("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leasehold"), shell.path("bin/leasehold")).unwrap();
        shell
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, real: &Path, arguments: &str) {
        let path = self.path("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\nexec '{}' {arguments} \"$@\"\n", real.display())).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, program: &str, script: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new(program)
            .args(["-c", script])
            .current_dir(self.0.path())
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env_remove("LEASEHOLD_STORE")
            .envs(variables.iter().copied())
            .output()
            .map_err(|error| error.to_string())?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() && (err.is_empty() || err.starts_with("NOTICE")) {
            Ok(out.into_owned())
        } else {
            Err(format!("{out}{err}"))
        }
    }

    fn run_blocks(&self, blocks: &[Block], database: &str, variables: &[(&str, &str)]) -> String {
        let blocks: Vec<_> = blocks.iter().filter(|block| block.is("sh", database)).collect();
        assert_eq!(blocks.len(), 1, "one block of shell for {database}");
        self.run("sh", &format!("set -e\n{}", blocks[0].text), variables).unwrap()
    }
}

#[test]
fn fencing_on_postgres() {
    if !DatabaseKind::Postgres.is_to_be_tested("fencing_on_postgres") {
        return;
    }
    let (blocks, server, shell) = (guide("fencing.md"), Postgres::shared(), Shell::new());
    shell.program("psql", &DatabaseKind::Postgres.program("psql").unwrap(), "-X -q");
    let url = server.url("fencing").unwrap();
    for _twice in 0..2 {
        shell.run_blocks(&blocks, "postgres", &[("DATABASE_URL", &url)]);
    }
    assert_eq!(run_sql(&blocks, "postgres", |script| server.psql("fencing", script)), 8);
}

#[test]
fn fencing_on_mysql() {
    if !DatabaseKind::MariaDb.is_to_be_tested("fencing_on_mysql") {
        return;
    }
    let (blocks, server, shell) = (guide("fencing.md"), MariaDb::shared(), Shell::new());
    server.url("shop").unwrap();
    let arguments =
        format!("--no-defaults --protocol=TCP -h 127.0.0.1 -u leasehold --port={}", server.port());
    shell.program("mariadb", &DatabaseKind::MariaDb.program("mariadb").unwrap(), &arguments);
    for _twice in 0..2 {
        shell.run_blocks(&blocks, "mysql", &[]);
    }
    assert_eq!(run_sql(&blocks, "mysql", |script| server.client("shop", script)), 2);
}

#[test]
fn fencing_on_sqlite() {
    let (blocks, shell) = (guide("fencing.md"), Shell::new());
    let shop = rusqlite::Connection::open(shell.path("shop.db")).unwrap();
    if Command::new("sqlite3").arg("--version").output().is_ok() {
        for _twice in 0..2 {
            shell.run_blocks(&blocks, "sqlite", &[]);
        }
    } else {
        eprintln!("no sqlite3 program on this machine: the schema goes in through the library");
        let printed = shell.run("sh", "leasehold sql sqlite", &[]).unwrap();
        shop.execute_batch(&printed).unwrap();
    }
    let run =
        |script: &str| shop.execute_batch(script).map(|()| String::new()).map_err(std::io::Error::other);
    assert_eq!(run_sql(&blocks, "sqlite", run), 2);

    let python = blocks.iter().find(|block| block.is("python", "sqlite")).unwrap();
    if Command::new("python3").arg("--version").output().is_err() {
        let required = std::env::var("LEASEHOLD_REQUIRE").unwrap_or_default();
        assert!(!required.contains("python"), "python3 is required by LEASEHOLD_REQUIRE={required}");
        eprintln!("SKIPPED the Python of docs/fencing.md: no python3 on this machine");
        return;
    }
    let amount = || shop.query_row("SELECT amount FROM stock", [], |row| row.get::<_, i64>(0)).unwrap();
    shell.run("python3", &python.text, &[("LEASEHOLD_FENCING_TOKEN", "36")]).unwrap();
    assert_eq!(amount(), 8);
    let refused = shell.run("python3", &python.text, &[("LEASEHOLD_FENCING_TOKEN", "35")]).unwrap_err();
    assert!(refused.contains("IntegrityError: leasehold: fenced"), "{refused}");
    assert_eq!(amount(), 8);
}

#[test]
fn fencing_in_redis() {
    if !kinds_to_test("fencing_in_redis").contains(&ServerKind::Redis7) {
        return;
    }
    let beside = ServerKind::Redis7.executable().unwrap().with_file_name("redis-cli");
    let client = if beside.is_file() { beside } else { "redis-cli".into() };
    let (blocks, server, shell) =
        (guide("fencing.md"), RedisServer::start(ServerKind::Redis7).unwrap(), Shell::new());
    shell.program("redis-cli", &client, &format!("-p {}", server.port()));
    assert_eq!(shell.run_blocks(&blocks, "redis", &[]), "OK\n10\nOK\n");
    assert_eq!(server.cli(&["GET", "stock:7"]).unwrap(), "9");
    let stale = "redis-cli --eval guarded.lua stock:7 'guard:{stock:7}' , 33 worker-a lock: SET 8 2>&1";
    let refused = shell.run("sh", stale, &[]);
    assert!(format!("{refused:?}").contains("LEASEHOLDFENCED mine=33 newest=34"), "{refused:?}");
}

#[test]
fn choosing_on_postgres() {
    if !DatabaseKind::Postgres.is_to_be_tested("choosing_on_postgres") {
        return;
    }
    let (blocks, server) = (guide("choosing.md"), Postgres::shared());
    server.url("choosing").unwrap();
    assert_eq!(run_sql(&blocks, "postgres", |script| server.psql("choosing", script)), 6);
}

#[test]
fn what_is_printed_is_the_same_whatever_the_settings_are() {
    let shell = Shell::new();
    for database in ["postgres", "mysql", "mariadb", "sqlite", "redis"] {
        let printed = shell.run("sh", &format!("leasehold sql {database}"), &[]).unwrap();
        assert!(printed.starts_with("-- Leasehold: seal and check, for "), "{printed}");
        let wrong_store = [("LEASEHOLD_STORE", "redis://127.0.0.1:1/")];
        assert_eq!(
            shell.run("sh", &format!("leasehold sql {database}"), &wrong_store).unwrap(),
            printed,
            "asks nobody"
        );
    }
    let refused = shell.run("sh", "leasehold sql oracle; echo $?", &[]).unwrap_err();
    assert!(
        refused.contains("postgres") && refused.contains("sqlite") && refused.starts_with("2\n"),
        "{refused}"
    );
}
