//! The tests as they are written: every test function with its documentation, found by reading the sources. Owns no
//! knowledge of what their names mean.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders that hold sources.
const FOLDERS: [&str; 6] = ["bench", "crates", "examples", "soak", "tests", "xtask"];

/// A test function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Its file, from the folder of the repository on.
    pub file: String,
    /// The line its name is in.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// Its documentation, one entry per line.
    pub documentation: Vec<String>,
}

/// Every test of the repository, in the order of files and lines.
///
/// # Errors
/// A message when a file or folder cannot be read.
pub fn tests(root: &Path) -> Result<Vec<Test>, String> {
    let mut found = Vec::new();
    for file in rust_files(root)? {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let shown = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        found.extend(tests_in(&shown, &text));
    }
    Ok(found)
}

/// The tests in one file.
pub fn tests_in(file: &str, text: &str) -> Vec<Test> {
    let (mut found, mut documentation, mut is_test) = (Vec::new(), Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            documentation.push(text.trim().to_owned());
        } else if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else {
            if let Some(name) = function_name(line).filter(|_| is_test) {
                let documentation = std::mem::take(&mut documentation);
                found.push(Test { file: file.to_owned(), line: index + 1, name, documentation });
            }
            documentation.clear();
            is_test = false;
        }
    }
    found
}

fn function_name(line: &str) -> Option<String> {
    let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    Some(rest.split(['(', '<']).next()?.to_owned())
}

fn rust_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut folders: Vec<_> =
        FOLDERS.iter().map(|name| root.join(name)).filter(|path| path.is_dir()).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let cannot = |error| format!("{} cannot be read: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_count_as_tests_by_their_attribute_and_keep_their_documentation() {
        let text = "/// F001: One\n/// two.\n#[test]\nfn f001_a() {}\n\n/// No test.\nfn f002_b() {}\n\n\
                    #[tokio::test(start_paused = true)]\nasync fn f003_c() {\n    let x = 1;\n}\n";
        let found = tests_in("a.rs", text);
        let names: Vec<_> = found.iter().map(|test| (test.name.as_str(), test.line)).collect();
        assert_eq!(names, [("f001_a", 4), ("f003_c", 10)]);
        assert_eq!(found[0].documentation, ["F001: One", "two."]);
        assert!(found[1].documentation.is_empty());
    }
}
