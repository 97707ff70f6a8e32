//! Payment events from a file of JSON lines: read and checked as a whole before anything is started. What is done
//! about an event is not decided here.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use leasehold::Name;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// The events that come with the program.
const SHIPPED: &str = include_str!("../../assets/orders.jsonl");
/// The demo keeps every event and every step of every worker in memory and on its page.
const MOST_EVENTS: usize = 20_000;
/// A file that is larger holds more events than the demo takes, or is not a file of events.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// What the demo needs of an event. What else it must hold is checked and then nobody's business here.
struct Payment {
    event_id: String,
    order_id: String,
}

/// What the workers are told: which order each event, in the order of delivery, is about.
#[derive(Debug)]
pub(super) struct Events {
    /// The order of each event.
    pub(super) orders: Vec<String>,
    /// How many different orders there are.
    pub(super) distinct: usize,
    /// How many events have an id that an earlier one had.
    pub(super) repeated: usize,
    /// Where each order is met for the first time, in the order of delivery.
    pub(super) first_positions: Vec<usize>,
}

impl Events {
    /// The events of the user's file, or else those that come with the program.
    pub(super) fn load(file: Option<&Path>) -> Result<Self, Failure> {
        match file {
            None => Self::parse(SHIPPED, "the shipped orders"),
            Some(path) => Self::parse(&read(path)?, &path.display().to_string()),
        }
    }

    pub(super) fn parse(text: &str, source: &str) -> Result<Self, Failure> {
        let mut events = Self { orders: Vec::new(), distinct: 0, repeated: 0, first_positions: Vec::new() };
        let (mut event_ids, mut order_ids) = (HashSet::new(), HashSet::new());
        // Editors on some systems begin a text with a mark of its encoding.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().zip(1_usize..).filter(|(line, _)| !line.trim().is_empty());
        for (line, number) in lines {
            if events.orders.len() == MOST_EVENTS {
                return Err(Failure::usage(format!(
                    "{source} has more than {MOST_EVENTS} events, which is more than the demo takes: give it the \
                     first of them (head -n {MOST_EVENTS})"
                )));
            }
            let event = check(line)
                .map_err(|problem| Failure::usage(format!("{source}, line {number}: {problem}")))?;
            if !event_ids.insert(event.event_id) {
                events.repeated += 1;
            }
            if order_ids.insert(event.order_id.clone()) {
                events.first_positions.push(events.orders.len());
            }
            events.orders.push(event.order_id);
        }
        events.distinct = order_ids.len();
        if events.orders.is_empty() {
            return Err(Failure::usage(format!("{source} holds no events: write one JSON object per line")));
        }
        Ok(events)
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let cannot = |error: io::Error| {
        Failure::usage(format!("the events in {} cannot be read: {error}", path.display()))
    };
    let file = File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Failure::usage(format!(
            "{} has more than {} MiB, which is more than the demo takes: give it the first {MOST_EVENTS} events",
            path.display(),
            MOST_BYTES / 1024 / 1024
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].split(|byte| *byte == b'\n').count();
        Failure::usage(format!("{}, line {line}: this is not UTF-8 text", path.display()))
    })
}

/// The event on this line, or what is wrong with it.
fn check(line: &str) -> Result<Payment, String> {
    let Value::Object(event) = serde_json::from_str(line).map_err(|error| explain(&error))? else {
        return Err("this is not a JSON object: write one object per line".to_owned());
    };
    let payment = Payment { event_id: text(&event, "event_id")?, order_id: text(&event, "order_id")? };
    // Amounts are written as numbers or, so that nobody rounds them, as text.
    match event.get("amount") {
        Some(Value::Number(_)) => {}
        None | Some(Value::String(_)) => drop(text(&event, "amount")?),
        Some(_) => return Err("amount must be a number or text".to_owned()),
    }
    text(&event, "currency")?;
    text(&event, "paid_at")?;
    Name::new(lock_name(&payment.order_id)).map_err(|error| format!("order_id cannot be locked: {error}"))?;
    Ok(payment)
}

/// A field that must hold text, and not nothing.
fn text(event: &Map<String, Value>, field: &str) -> Result<String, String> {
    match event.get(field) {
        None => Err(format!("missing field {field}")),
        Some(Value::String(text)) if text.trim().is_empty() => Err(format!("{field} is empty")),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("{field} must be text")),
    }
}

/// What the parser says, with its place in the line instead of the line 1 that it always believes in.
fn explain(error: &serde_json::Error) -> String {
    let mut words = error.to_string();
    if let Some(place) = words.rfind(" at line ") {
        words.truncate(place);
    }
    format!("this is not JSON ({words}, column {})", error.column())
}

/// What is locked for an order.
pub(super) fn lock_name(order: &str) -> String {
    format!("order:{order}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"event_id":"e1","order_id":"o1","amount":12.5,"currency":"EUR","paid_at":"2026-11-27T08:00:00Z"}"#;

    fn message(text: &str) -> String {
        Events::parse(text, "FILE").unwrap_err().message
    }

    #[test]
    fn the_shipped_events_can_be_used() {
        let events = Events::load(None).unwrap();
        assert_eq!((events.orders.len(), events.distinct, events.repeated), (1_150, 1_000, 80));
        assert_eq!(events.first_positions.len(), 1_000);
    }

    #[test]
    fn events_with_the_same_order_are_the_same_order() {
        let text = format!("{GOOD}\n\n{}\n{GOOD}\n", GOOD.replace("e1", "e2").replace("12.5", "\"12.50\""));
        let events = Events::parse(&text, "FILE").unwrap();
        assert_eq!((events.orders.len(), events.distinct, events.repeated), (3, 1, 1));
        assert_eq!(events.first_positions, [0]);
    }

    #[test]
    fn a_mark_of_the_encoding_before_the_first_event_does_no_harm() {
        let events = Events::parse(&format!("\u{feff}{GOOD}\n"), "FILE").unwrap();
        assert_eq!(events.orders, ["o1"]);
    }

    #[test]
    fn a_bad_line_is_named_with_its_number_and_what_is_wrong() {
        for (bad, problem) in [
            ("{", "FILE, line 3: this is not JSON (EOF while parsing an object, column 1)"),
            ("{'a':1}", "FILE, line 3: this is not JSON (key must be a string, column 2)"),
            ("[1]", "FILE, line 3: this is not a JSON object: write one object per line"),
            (
                r#"["e1","o1",1,"EUR","x"]"#,
                "FILE, line 3: this is not a JSON object: write one object per line",
            ),
            (&GOOD.replace("order_id", "order"), "FILE, line 3: missing field order_id"),
            (&GOOD.replace("12.5", "[]"), "FILE, line 3: amount must be a number or text"),
            (&GOOD.replace("\"o1\"", "17"), "FILE, line 3: order_id must be text"),
            (&GOOD.replace("\"EUR\"", "null"), "FILE, line 3: currency must be text"),
            (&GOOD.replace("12.5", "\"\""), "FILE, line 3: amount is empty"),
            (&GOOD.replace("\"amount\":12.5,", ""), "FILE, line 3: missing field amount"),
            (&GOOD.replace("\"o1\"", "\" \""), "FILE, line 3: order_id is empty"),
            (&GOOD.replace("o1", &"o".repeat(600)), "FILE, line 3: order_id cannot be locked: "),
        ] {
            let message = message(&format!("{GOOD}\n\n{bad}\n{GOOD}\n"));
            assert!(message.starts_with(problem), "{message}\n{problem}");
        }
    }

    #[test]
    fn an_empty_file_and_one_that_is_too_long_are_refused() {
        assert!(message("\n \n").contains("no events"));
        let long = format!("{GOOD}\n").repeat(MOST_EVENTS + 1);
        assert!(message(&long).contains("more than 20000 events"));
    }

    #[test]
    fn a_file_that_is_no_text_or_no_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        std::fs::write(&path, b"one\ntwo \xff\n").unwrap();
        assert!(Events::load(Some(&path)).unwrap_err().message.ends_with("line 2: this is not UTF-8 text"));
        for path in [directory.path().join("none"), directory.path().to_owned()] {
            let failure = Events::load(Some(&path)).unwrap_err();
            assert_eq!(failure.code, crate::failure::USAGE);
            assert!(failure.message.contains("cannot be read"), "{}", failure.message);
        }
    }
}
