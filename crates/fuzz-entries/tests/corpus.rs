//! What the fuzzer found is replayed, with some random changes of each input, from a fixed seed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::{Path, PathBuf};

use leasehold_fuzz_entries::{TARGETS, Target};

/// Changed inputs per target, unless the target is one of the slow ones.
const CHANGED: usize = 3_000;
/// Those that start a store for every input.
const SLOW: [(&str, usize); 2] = [("lying_server", 200), ("store_file", 200)];
const SEED: u64 = 2_026;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("fuzz/corpus").join(target)
}

/// The inputs of a target, in the order of their names.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = corpus(target);
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.into_iter().map(|path| (path.display().to_string(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn every_target_has_inputs_and_every_input_a_target() {
    for (name, _) in TARGETS {
        assert!(!inputs(name).is_empty(), "{name}");
    }
    for folder in std::fs::read_dir(corpus("")).unwrap() {
        let folder = folder.unwrap().file_name();
        assert!(TARGETS.iter().any(|(name, _)| *name == folder), "{}", folder.display());
    }
}

#[test]
fn what_was_found_breaks_nothing() {
    for (name, target) in TARGETS {
        for (path, input) in inputs(name) {
            // The last line before a failure says which input it was.
            println!("{path}");
            target(&input);
        }
    }
}

#[test]
fn random_changes_of_what_was_found_break_nothing() {
    std::thread::scope(|scope| {
        for target in TARGETS {
            scope.spawn(move || change_and_try(target));
        }
    });
}

fn change_and_try((name, target): &Target) {
    let inputs = inputs(name);
    let mut random = Random(SEED);
    let times = SLOW.iter().find(|(slow, _)| slow == name).map_or(CHANGED, |(_, times)| *times);
    for _ in 0..times {
        let mut input = inputs[random.below(inputs.len())].1.clone();
        for _ in 0..=random.below(4) {
            let other = &inputs[random.below(inputs.len())].1;
            random.change(&mut input, other);
        }
        // The last line before a failure says which input it was.
        println!("{name}: {}", input.escape_ascii());
        target(&input);
    }
}

/// A repeatable sequence of numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// An index below the limit, 0 if there is none.
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit.max(1)).unwrap()).unwrap()
    }

    /// Changes, inserts, removes or repeats something, or takes a piece of another input.
    fn change(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(input.len() + 1);
        let byte = self.next().to_le_bytes()[0];
        match self.below(6) {
            0 if at < input.len() => input[at] = byte,
            1 if at < input.len() => input[at] ^= 1 << (byte % 8),
            2 if at < input.len() => {
                let until = at + self.below(input.len() - at) + 1;
                input.drain(at..until.min(input.len()));
            }
            3 => {
                let from = self.below(other.len());
                let until = from + self.below(other.len() - from + 1).min(200);
                input.splice(at..at, other[from..until].iter().copied());
            }
            4 => {
                let digits =
                    ["0", "-1", "9223372036854775807", "18446744073709551616", "\r\n", "\0", "{", " "];
                input.splice(at..at, digits[self.below(digits.len())].bytes());
            }
            _ => input.insert(at, byte),
        }
    }
}
