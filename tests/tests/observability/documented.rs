//! `docs/observability.md` and the code say the same: every metric with its kind and labels, every event.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use leasehold::LostCause;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap()
}

/// The rows of the tables below a heading, as cells.
fn rows(document: &str, heading: &str) -> Vec<Vec<String>> {
    let part = document.split("\n## ").find(|part| part.starts_with(heading)).unwrap();
    let lines = part.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| metric"));
    lines
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// The words in backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The text between two others, and what follows it.
fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(from)?.1.split_once(to)
}

#[test]
fn the_table_of_metrics_is_what_the_code_counts() {
    let code = read("crates/core/src/observe.rs");
    let mut counted = BTreeMap::new();
    for kind in ["counter", "gauge", "histogram"] {
        let mut rest = code.as_str();
        while let Some((call, after)) = between(rest, &format!("{kind}!("), ")") {
            let mut words = call.split('"').skip(1).step_by(2);
            let name = words.next().unwrap().to_owned();
            let label = words.next().unwrap_or_default().to_owned();
            counted.insert(name, (kind.to_owned(), label));
            rest = after;
        }
    }
    assert!(counted.len() >= 10, "{counted:?}");
    let documented: BTreeMap<_, _> = rows(&read("docs/observability.md"), "Metrics")
        .into_iter()
        .map(|row| {
            let label = quoted(&row[2]).first().copied().unwrap_or_default().to_owned();
            (quoted(&row[0])[0].to_owned(), (row[1].clone(), label))
        })
        .collect();
    assert_eq!(documented, counted);
}

#[test]
fn the_labels_of_the_table_are_those_of_the_code() {
    let document = read("docs/observability.md");
    let of = |metric: &str| -> BTreeSet<String> {
        let rows = rows(&document, "Metrics");
        let row = rows.iter().find(|row| row[0].contains(metric)).unwrap();
        quoted(&row[2]).into_iter().skip(1).map(str::to_owned).collect()
    };
    // A forked child has no recorder that anybody reads: it counts nothing.
    let causes = [
        LostCause::Expired,
        LostCause::Taken,
        LostCause::Missing,
        LostCause::Unreachable,
        LostCause::MaxHold,
        LostCause::Broken,
    ];
    assert_eq!(of("leasehold_lost_total"), causes.map(|cause| cause.label().to_owned()).into());
    let core = ["observe", "acquire", "keeper", "cleanup", "guard"]
        .map(|file| read(&format!("crates/core/src/{file}.rs")))
        .concat();
    for (metric, call) in [
        ("leasehold_renewals_total", "observe::renewal("),
        ("leasehold_handovers_total", "observe::hand_over("),
        ("leasehold_asked_again_total", "observe::asked_again("),
        ("leasehold_cleanups_total", "observe::clean_up("),
    ] {
        let mut called = BTreeSet::new();
        let mut rest = core.as_str();
        while let Some((argument, after)) = between(rest, call, ");").or_else(|| between(rest, call, "),")) {
            let argument = argument.split_once("),").map_or(argument, |(argument, _)| argument);
            called.extend(argument.split('"').skip(1).step_by(2).map(str::to_owned));
            rest = after;
        }
        assert_eq!(of(metric), called, "{metric}");
    }
    let mut shown: BTreeSet<String> = BTreeSet::new();
    let labels = between(&core, "fn label(self)", "\n    }\n").unwrap().0;
    shown.extend(labels.split('"').skip(1).step_by(2).map(str::to_owned));
    assert_eq!(of("leasehold_acquire_seconds"), shown);
    assert_eq!(of("leasehold_hold_seconds"), ["lost", "released"].map(str::to_owned).into());
}

#[test]
fn every_event_of_the_code_is_in_the_table_with_its_level_and_the_other_way_round() {
    let document = read("docs/observability.md");
    let mut documented: BTreeSet<(String, String)> = rows(&document, "Events")
        .into_iter()
        .filter(|row| !row[0].starts_with("level") && !row[0].starts_with("---"))
        .map(|row| (row[0].to_lowercase(), row[1].trim_end_matches(" \u{2026}").to_owned()))
        .collect();
    let mut told = 0;
    for file in sources_of_the_library() {
        let code = std::fs::read_to_string(&file).unwrap();
        for level in ["error", "warn", "info", "debug"] {
            let mut rest = code.as_str();
            while let Some((call, after)) = between(rest, &format!("tracing::{level}!("), ");") {
                let message = call.split('"').skip(1).step_by(2).last().unwrap();
                let known: Vec<_> = documented
                    .iter()
                    .filter(|(known, words)| known == level && message.starts_with(words.as_str()))
                    .cloned()
                    .collect();
                assert_eq!(
                    known.len(),
                    1,
                    "{}: {level} {message:?} is not in the table once",
                    file.display()
                );
                documented.remove(&known[0]);
                told += 1;
                rest = after;
            }
        }
    }
    assert!(told >= 15, "{told} events were found");
    assert!(documented.is_empty(), "in the table and not in the code: {documented:?}");
}

#[test]
fn metrics_are_named_in_one_place_only() {
    for file in sources_of_the_library() {
        let code = std::fs::read_to_string(&file).unwrap();
        let counts = ["counter!(", "gauge!(", "histogram!("].iter().any(|call| code.contains(call));
        assert_eq!(counts, file.ends_with("core/src/observe.rs"), "{}", file.display());
    }
}

fn sources_of_the_library() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for part in ["core", "redis", "sqlite", "leasehold"] {
        sources(&repository().join("crates").join(part).join("src"), &mut files);
    }
    files
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
