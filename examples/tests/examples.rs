//! Every example runs to its end and does what it says, on a SQLite file and on Redis.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::Command;

use leasehold_testkit::servers::{RedisServer, ServerKind};

#[test]
fn they_run_on_a_sqlite_file() {
    run_all(None);
}

#[test]
fn they_run_on_redis_and_leave_nothing_but_the_counter() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run_all(Some(&server.url()));
    assert_eq!(server.cli(&["DBSIZE"]).unwrap(), "1", "the last fencing token");
}

fn run_all(store: Option<&str>) {
    let said = run(env!("CARGO_BIN_EXE_shipping"), store);
    let counts: Vec<u32> = numbers(said.lines().next().unwrap());
    assert_eq!(counts[0], 150, "{said}");
    // "by each server: (a, b, c)": together every order, once.
    assert_eq!(counts[2..].iter().sum::<u32>(), 50, "{said}");
    assert!(said.contains("a write with an old token is refused: true"), "{said}");

    let said = run(env!("CARGO_BIN_EXE_by_hand"), store);
    for words in [
        "report:daily is held by morning-shift for another ",
        "waiting: report:daily is held by morning-shift",
        "page 3\nthe first report is done\nnow it is held by evening-shift",
    ] {
        assert!(said.contains(words), "{words} is not in: {said}");
    }

    let said = run(env!("CARGO_BIN_EXE_blocking"), store);
    assert_eq!(said.matches("imported under fencing token").count(), 4, "{said}");
    assert!(said.ends_with("4 files imported by 3 workers\n"), "{said}");
}

fn run(program: &str, store: Option<&str>) -> String {
    let mut command = Command::new(program);
    command.env_remove("LEASEHOLD_STORE").envs(store.map(|url| ("LEASEHOLD_STORE", url)));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn numbers(text: &str) -> Vec<u32> {
    let digits = text.split(|letter: char| !letter.is_ascii_digit());
    digits.filter_map(|digits| digits.parse().ok()).collect()
}
