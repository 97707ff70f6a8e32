//! The table of docs/guarantees.md says what the types say, and the tests it names exist.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use leasehold::blocking::block_on;
use leasehold::{Client, Fault, Guarantees, Outcome};
use leasehold_redis::{ClusterConfig, RedisConfig};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn of_redis(url: &str) -> Guarantees {
    RedisConfig::from_url(url).unwrap().guarantees()
}

fn of_client(url: &str) -> Guarantees {
    block_on(Client::connect(url)).unwrap().guarantees()
}

/// A row of the table.
struct Row {
    store: String,
    fault: String,
    exclusion: String,
    fencing: String,
}

fn rows() -> Vec<Row> {
    let text = std::fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
        let [store, fault, exclusion, fencing] = <[String; 4]>::try_from(cells).unwrap();
        Row { store, fault, exclusion, fencing }
    });
    rows.collect()
}

/// The outcome in bold, and what backs it.
fn split(cell: &str) -> (&str, &str) {
    let (outcome, backing) = cell.strip_prefix("**").unwrap().split_once("**:").unwrap();
    (outcome, backing.trim())
}

#[test]
fn the_table_says_what_the_types_say() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("locks.db").display());
    let stores = [
        ("`redis://`", of_redis("redis://h/")),
        ("`redis://`, `scripting=off`", of_redis("redis://h/?scripting=off&allow_unfenced=1")),
        ("`redis+sentinel://`", of_redis("redis+sentinel://h/s")),
        ("`redis+sentinel://`, `acks=1`", of_redis("redis+sentinel://h/s?acks=1")),
        ("`redis+cluster://`", ClusterConfig::from_url("redis+cluster://h/").unwrap().guarantees()),
        ("`sqlite:`, `local`", of_client(&sqlite)),
        ("`memory:`", of_client("memory:")),
    ];
    let rows = rows();
    for (store, guarantees) in stores {
        for fault in Fault::ALL {
            let row = rows.iter().find(|row| row.store == store && row.fault == fault.to_string());
            let row = row.unwrap_or_else(|| panic!("no row for {store} under {fault}"));
            let of = |outcome: Outcome| outcome.to_string();
            assert_eq!(split(&row.exclusion).0, of(guarantees.exclusion.under(fault)), "{store}, {fault}");
            assert_eq!(split(&row.fencing).0, of(guarantees.fencing.under(fault)), "{store}, {fault}");
        }
    }
}

#[test]
fn every_cell_is_backed_by_a_test_that_exists_or_by_a_reason() {
    let mut named = BTreeSet::new();
    for row in rows() {
        for cell in [&row.exclusion, &row.fencing] {
            let (_, backing) = split(cell);
            let links: Vec<_> = backing.split("[`").skip(1).collect();
            assert!(!links.is_empty() || backing.split(' ').count() > 1, "{}: {cell}", row.store);
            for link in links {
                let (name, rest) = link.split_once("`](../").unwrap();
                named.insert((name.to_owned(), rest.split_once(')').unwrap().0.to_owned()));
            }
        }
    }
    assert!(named.len() > 20, "the table is not read: {named:?}");
    for (name, file) in named {
        let text =
            std::fs::read_to_string(root().join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let at = text.find(&format!("fn {name}(")).unwrap_or_else(|| panic!("{file} has no test {name}"));
        let before = &text[..at];
        let attributes = &before[before.rfind("\n\n").unwrap_or(0)..];
        assert!(
            attributes.contains("test]") || attributes.contains("::test("),
            "{name} in {file} is no test"
        );
    }
}
