//! `docs/field-cases.md`: failures that users of other lock libraries met, and what happens here. The list of
//! cases is `xtask/field-cases.txt`; what happens here is the first line of documentation of the tests that bear a
//! case's number, `/// F001: …`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::sources::{self, Test};

/// Where the page is.
pub const PAGE: &str = "docs/field-cases.md";
const LIST: &str = "xtask/field-cases.txt";

const HEAD: &str = "\
<!-- Made by `cargo xtask field-cases` from the tests and xtask/field-cases.txt. -->
# Field cases

Each of these failures was met by users of another lock library. A case that Leasehold can meet has tests that
replay it: their names bear its number, so `cargo test f039` runs those of case F039. What is said about a case is
what its tests show.
";

/// One case of the list.
#[derive(Debug, PartialEq, Eq)]
struct Case {
    id: String,
    kind: String,
    symptom: String,
    /// The later work to which it belongs as long as it has no test.
    later: Option<String>,
}

/// The page as the tests have it now.
///
/// # Errors
/// A message when a test does not say what happens, a case has no test, or a test's case is not in the list.
pub fn page(root: &Path) -> Result<String, String> {
    let list = fs::read_to_string(root.join(LIST)).map_err(|error| format!("{LIST}: {error}"))?;
    let cases = read_list(&list)?;
    let tests = sources::tests(root)?;
    let told = told_by(&tests)?;
    render(&cases, &told)
}

fn read_list(text: &str) -> Result<Vec<Case>, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<_> = line.split('|').map(|field| field.trim().to_owned()).collect();
            let [id, kind, symptom, later @ ..] = fields.as_slice() else {
                return Err(format!("{LIST}: not 'number | kind | symptom': {line}"));
            };
            let later = later.first().cloned();
            Ok(Case { id: id.clone(), kind: kind.clone(), symptom: symptom.clone(), later })
        })
        .collect()
}

/// What a test says of a case.
struct Told<'a> {
    sentence: String,
    test: &'a Test,
}

/// What is said of each case, by number.
fn told_by(tests: &[Test]) -> Result<BTreeMap<String, Vec<Told<'_>>>, String> {
    let mut told: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for test in tests {
        for id in ids_in(&test.name) {
            let sentence = sentence(test, &id).ok_or_else(|| {
                format!(
                    "{}:{}: {} needs a line of documentation that says what happens: /// {id}: …",
                    test.file, test.line, test.name
                )
            })?;
            told.entry(id).or_default().push(Told { sentence, test });
        }
    }
    Ok(told)
}

/// The numbers of cases in the name of a test: `f001` between underscores or at the beginning.
fn ids_in(name: &str) -> Vec<String> {
    let is_id = |part: &&str| {
        part.len() == 4 && part.starts_with('f') && part.bytes().skip(1).all(|byte| byte.is_ascii_digit())
    };
    name.split('_').filter(is_id).map(str::to_uppercase).collect()
}

/// What the documentation says of a case: the paragraph that begins with its number, alone or among others.
fn sentence(test: &Test, id: &str) -> Option<String> {
    let names_it =
        |line: &str| line.split_once(": ").is_some_and(|(ids, _)| ids.split(", ").any(|each| each == id));
    let begins = test.documentation.iter().position(|line| names_it(line))?;
    let (_, first) = test.documentation[begins].split_once(": ")?;
    let rest = test.documentation[begins + 1..].iter().take_while(|line| !line.is_empty() && !is_new(line));
    Some(std::iter::once(first).chain(rest.map(String::as_str)).collect::<Vec<_>>().join(" "))
}

/// Whether a line begins what is said of another case.
fn is_new(line: &str) -> bool {
    line.split_once(": ")
        .is_some_and(|(ids, _)| ids.split(", ").all(|id| ids_in(&id.to_lowercase()).len() == 1))
}

fn render(cases: &[Case], told: &BTreeMap<String, Vec<Told<'_>>>) -> Result<String, String> {
    if let Some(unknown) = told.keys().find(|id| cases.iter().all(|case| case.id != **id)) {
        return Err(format!("{unknown} has a test but is not in {LIST}"));
    }
    let (now, later): (Vec<_>, Vec<_>) = cases.iter().partition(|case| told.contains_key(&case.id));
    let mut page = format!(
        "{HEAD}\n{} of {} cases have tests; the others belong to what is not built yet.\n\n",
        now.len(),
        cases.len()
    );
    // Writing to a string cannot fail.
    let _ = page.write_str("| case | what others met | what happens here |\n|---|---|---|\n");
    for case in now {
        let here: Vec<_> = told[&case.id].iter().map(describe).collect();
        let _ = writeln!(page, "| {} | {}: {} | {} |", case.id, case.kind, case.symptom, here.join("<br>"));
    }
    let _ = page.write_str("\n## Later\n\n| case | what others met | belongs to |\n|---|---|---|\n");
    for case in later {
        let Some(work) = &case.later else {
            return Err(format!(
                "{} has no test, and {LIST} does not say to which later work it belongs",
                case.id
            ));
        };
        let _ = writeln!(page, "| {} | {}: {} | {work} |", case.id, case.kind, case.symptom);
    }
    Ok(page)
}

fn describe(told: &Told<'_>) -> String {
    format!("{} ([test](../{}))", told.sentence, told.test.file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, documentation: &[&str]) -> Test {
        let documentation = documentation.iter().map(|&line| line.to_owned()).collect();
        Test { file: "a.rs".into(), line: 1, name: name.into(), documentation }
    }

    #[test]
    fn what_is_said_of_a_case_is_its_paragraph() {
        let one = test("trap_1_f007_f046_x", &["F007, F046: It is", "handed over.", "", "More."]);
        assert_eq!(ids_in(&one.name), ["F007", "F046"]);
        assert_eq!(sentence(&one, "F046").unwrap(), "It is handed over.");
        let two = test("f009_f130_x", &["F009: One: two.", "F130: Three."]);
        assert_eq!(sentence(&two, "F009").unwrap(), "One: two.");
        assert_eq!(sentence(&two, "F130").unwrap(), "Three.");
        assert_eq!(sentence(&two, "F001"), None);
    }

    #[test]
    fn a_test_that_says_nothing_and_a_case_without_a_test_are_errors() {
        let silent = [test("f001_x", &["Something."])];
        assert!(told_by(&silent).err().unwrap().contains("/// F001: …"));
        let case = |later| read_list(&format!("F001 | kind | symptom{later}")).unwrap();
        let none = BTreeMap::new();
        assert!(render(&case(""), &none).unwrap_err().contains("no test"));
        assert!(render(&case(" | quorum"), &none).unwrap().contains("| F001 | kind: symptom | quorum |"));
        let told = [test("f002_x", &["F002: It works."])];
        assert!(render(&case(""), &told_by(&told).unwrap()).unwrap_err().contains("F002"));
    }
}
