//! `docs/guards.md`: every rule that test builds can switch off, what it protects, and the tests that then fail. The
//! rules are in `crates/core/src/mutation.rs`, the tests in `crates/testkit/mutations.txt`; `scripts/mutations` runs
//! them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::sources::{self, Test};

/// Where the page is.
pub const PAGE: &str = "docs/guards.md";
const RULES: &str = "crates/core/src/mutation.rs";
const TABLE: &str = "crates/testkit/mutations.txt";

const HEAD: &str = "\
<!-- Made by `cargo xtask guards` from crates/core/src/mutation.rs and crates/testkit/mutations.txt. -->
# Guards

Every rule that protects a lease can be switched off in a test build. `scripts/mutations`, which CI runs, switches
off one after the other and demands that a test fails: so no guard is there in vain, and none can be lost unseen.

| rule | protects | switched off, this fails |
|---|---|---|
";

/// A rule with what it protects.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    name: String,
    protects: String,
}

/// A row of the table: a test that catches a rule.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    rule: String,
    package: String,
    binary: String,
    filter: String,
}

/// The page as the rules and tests are now.
///
/// # Errors
/// A message when a rule has no test, or a row names a rule that does not exist.
pub fn page(root: &Path) -> Result<String, String> {
    let read = |path: &str| fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"));
    let rules = read_rules(&read(RULES)?);
    if rules.is_empty() {
        return Err(format!("{RULES} holds no rules"));
    }
    render(&rules, &read_table(&read(TABLE)?)?, &sources::tests(root)?)
}

/// The rules: lines `/// what it protects` followed by `Variant = "name",`.
fn read_rules(text: &str) -> Vec<Rule> {
    let (mut rules, mut protects) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            protects.push(text.trim());
            continue;
        }
        let name = line.split_once(" = \"").and_then(|(_, rest)| rest.strip_suffix("\","));
        if let Some(name) = name.filter(|_| !protects.is_empty()) {
            rules.push(Rule { name: name.to_owned(), protects: protects.join(" ") });
        }
        protects.clear();
    }
    rules
}

fn read_table(text: &str) -> Result<Vec<Row>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| match line.split('|').map(str::trim).collect::<Vec<_>>().as_slice() {
            [rule, package, binary, filter] => Ok(Row {
                rule: (*rule).into(),
                package: (*package).into(),
                binary: (*binary).into(),
                filter: (*filter).into(),
            }),
            _ => Err(format!("{TABLE}: not 'rule | package | test binary | test name': {line}")),
        })
        .collect()
}

fn render(rules: &[Rule], rows: &[Row], tests: &[Test]) -> Result<String, String> {
    if let Some(row) = rows.iter().find(|row| rules.iter().all(|rule| rule.name != row.rule)) {
        return Err(format!("{TABLE}: there is no rule named {}", row.rule));
    }
    let mut page = HEAD.to_owned();
    for rule in rules {
        let catching: Vec<_> = rows.iter().filter(|row| row.rule == rule.name).collect();
        if catching.is_empty() {
            return Err(format!("the rule {} has no test in {TABLE}", rule.name));
        }
        let shown: Vec<_> = catching.iter().map(|row| describe(row, tests)).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| `{}` | {} | {} |", rule.name, rule.protects, shown.join("<br>"));
    }
    let _ = writeln!(page, "\n{} rules, {} rows of tests that catch them.", rules.len(), rows.len());
    Ok(page)
}

/// The test of a row, by the part of its name that the row gives.
fn describe(row: &Row, tests: &[Test]) -> String {
    let last = row.filter.rsplit("::").next().unwrap_or(&row.filter);
    let is_it = |test: &&Test| is_in(&test.file, row) && test.name.contains(last);
    match tests.iter().find(is_it) {
        Some(test) => format!("[{}](../{})", words(&test.name), test.file),
        // Those of the conformance suite are made by a macro.
        None => format!("{}, in {} of {}", words(last), row.binary, row.package),
    }
}

/// Whether a file is part of the test binary of a row.
fn is_in(file: &str, row: &Row) -> bool {
    let folder = match row.package.strip_prefix("leasehold-") {
        Some("tests") => "tests".to_owned(),
        other => format!("crates/{}", other.unwrap_or(&row.package)),
    };
    let binary = if row.binary == "lib" { "src/".to_owned() } else { format!("tests/{}", row.binary) };
    let of_package = file.strip_prefix(&folder).and_then(|rest| rest.strip_prefix('/'));
    of_package.is_some_and(|rest| rest.starts_with(&binary))
}

/// A test's name as a sentence.
fn words(name: &str) -> String {
    name.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_with_what_they_protect() {
        let text =
            "/// An enum.\npub enum Rule {}\n\n/// Trap 1: one\n/// and more.\nSameOwner = \"same-owner\",\n";
        let rules = read_rules(text);
        assert_eq!(rules, [Rule { name: "same-owner".into(), protects: "Trap 1: one and more.".into() }]);
        let rows = |rule: &str| read_table(&format!("# x\n{rule} | core | lib | some_test # why\n")).unwrap();
        assert!(render(&rules, &rows("other"), &[]).unwrap_err().contains("no rule named other"));
        assert!(render(&rules, &[], &[]).unwrap_err().contains("no test"));
        assert!(render(&rules, &rows("same-owner"), &[]).unwrap().contains("| `same-owner` | Trap 1"));
    }
}
