//! Input that cannot be used: exit code 2, one clear message, nothing started and nothing left.

use std::fs;

use crate::common::{Place, few_events};

/// Runs the demo, which must refuse, and returns its message.
fn refusal(place: &Place, arguments: &[&str]) -> String {
    let before = place.left();
    let output = place.run(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(output.stdout.is_empty());
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    assert!(message.starts_with("leasehold: "), "{message}");
    assert_eq!(place.left(), before, "nothing is left");
    assert!(place.left_temporary().is_empty(), "nothing was started");
    message
}

#[test]
fn bad_events_are_named_with_their_line() {
    for (line, problem) in [
        ("not json", "line 14: this is not JSON"),
        (r#"{"event_id":"e","order_id":"o","amount":1,"currency":"EUR"}"#, "line 14: missing field paid_at"),
        (
            r#"{"event_id":"e","amount":1,"currency":"EUR","paid_at":"2026-11-27T08:00:00Z"}"#,
            "line 14: missing field order_id",
        ),
    ] {
        let place = Place::new();
        let mut events = few_events(12);
        events.extend_from_slice(line.as_bytes());
        let orders = place.file("orders.jsonl", &events);
        let message = refusal(&place, &["--orders", orders.to_str().unwrap()]);
        assert!(message.contains(orders.to_str().unwrap()) && message.contains(problem), "{message}");
    }
}

#[test]
fn files_that_cannot_be_read_are_refused() {
    let place = Place::new();
    let empty = place.file("empty", b"");
    for (path, problem) in [
        (place.work().join("none.jsonl"), "No such file"),
        (place.work(), "Is a directory"),
        (empty, "holds no events"),
    ] {
        let message = refusal(&place, &["--orders", path.to_str().unwrap()]);
        assert!(message.contains(problem), "{message}");
    }
}

#[test]
fn a_page_that_cannot_be_written_is_found_out_before_anything_runs() {
    let place = Place::new();
    let nowhere = place.work().join("none").join("page.html");
    fs::create_dir(place.work().join("taken.html")).unwrap();
    for (path, problem) in
        [(nowhere.to_str().unwrap(), "No such file or directory"), ("taken.html", "it is a directory")]
    {
        let message = refusal(&place, &["--html", path]);
        assert!(message.contains(problem) && message.contains("--no-html"), "{message}");
    }
}

#[test]
fn stores_that_workers_cannot_share_are_refused() {
    let place = Place::new();
    for store in ["memory:", "nonsense"] {
        let message = refusal(&place, &["--store", store]);
        assert!(message.contains("store"), "{message}");
    }
}
