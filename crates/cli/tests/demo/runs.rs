//! What the four ways of running come to, on the shipped orders and on stores of the user.

use std::time::Instant;

use leasehold_testkit::servers::for_each_server;
use serde_json::{Value, json};

use crate::common::{Place, few_events};

fn way<'a>(report: &'a Value, key: &str) -> &'a Value {
    report["ways"].as_array().unwrap().iter().find(|way| way["way"] == key).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// What must be true whatever the orders and the store.
fn check(report: &Value, orders: u64) {
    assert_eq!(report["orders"], orders);
    for way in report["ways"].as_array().unwrap() {
        assert_eq!(way["orders_done"], orders, "{way:#}");
        let (requests, replayed) = (number(&way["requests"]), number(&way["requests_answered_from_memory"]));
        assert_eq!(number(&way["shipments"]), requests - replayed);
        assert_eq!(number(&way["duplicate_shipments"]), number(&way["shipments"]) - orders);
        let per_order = way["requests_per_order"].as_object().unwrap();
        let counted: u64 =
            per_order.iter().map(|(n, orders)| n.parse::<u64>().unwrap() * number(orders)).sum();
        assert_eq!(counted, requests);
        assert_eq!(way["freezes"].as_array().unwrap().len(), 2);
        for freeze in way["freezes"].as_array().unwrap() {
            assert!(freeze["frozen_seconds"].as_f64().unwrap() >= 0.5, "{freeze:#}");
        }
    }

    // Without a lock, orders are shipped again and again, and rows overwritten.
    let none = way(report, "no-lock");
    assert!(number(&none["duplicate_shipments"]) >= 2, "{none:#}");
    assert!(number(&none["stale_writes_accepted"]) >= 2, "{none:#}");

    // With a lock, only where its holder was frozen.
    for key in ["lock", "lock-fencing", "lock-fencing-idempotency"] {
        let way = way(report, key);
        assert_eq!(way["requests_per_order"], json!({ "1": orders - 2, "2": 2 }), "{way:#}");
        assert_eq!(way["leases_lost"], 2, "{way:#}");
        for freeze in way["freezes"].as_array().unwrap() {
            assert_eq!(freeze["requests"], 2, "{freeze:#}");
            let (stale, newer) = (&freeze["stale"], &freeze["newer"]);
            assert!(number(&stale["fencing_token"]) < number(&newer["fencing_token"]), "{freeze:#}");
            let accepted = key == "lock";
            assert_eq!(freeze["stale_write_accepted"], accepted, "{freeze:#}");
            let writer = if accepted { stale } else { newer };
            assert_eq!(freeze["tracking_in_the_end"], writer["tracking"], "{freeze:#}");
        }
    }
    // The update that a check on write loses is kept by the seal, on the same schedule.
    let scenes = report["lost_update"].as_array().unwrap();
    for (scene, (way, accepted, refused, lost)) in
        scenes.iter().zip([("check-on-write", 2, 0, 1), ("seal", 1, 1, 0)])
    {
        assert!(number(&scene["stale_token"]) < number(&scene["newer_token"]), "{scene:#}");
        let counted =
            ["way", "writes_accepted", "writes_refused", "updates_lost", "left"].map(|key| &scene[key]);
        assert_eq!(
            counted,
            [&json!(way), &json!(accepted), &json!(refused), &json!(lost), &json!(9)],
            "{scene:#}"
        );
    }
    assert_eq!(scenes.len(), 2);
    let counts = |key: &str| {
        let way = way(report, key);
        ["duplicate_shipments", "stale_writes_accepted", "stale_writes_refused"]
            .map(|count| number(&way[count]))
    };
    assert_eq!(counts("lock"), [2, 2, 0]);
    assert_eq!(counts("lock-fencing"), [2, 0, 2]);
    assert_eq!(counts("lock-fencing-idempotency"), [0, 0, 2]);
}

#[test]
fn the_shipped_orders_show_what_each_way_prevents() {
    let place = Place::new();
    let began = Instant::now();
    let report = place.report(&["--no-html"]);
    eprintln!("the demo took {:.1} s", began.elapsed().as_secs_f64());
    check(&report, 1_000);
    assert_eq!((&report["events"], &report["events_delivered_again"]), (&json!(1_150), &json!(80)));
    let none = way(&report, "no-lock");
    assert!(number(&none["duplicate_shipments"]) > 100, "{none:#}");
    assert!(place.left().is_empty() && place.left_temporary().is_empty());
}

#[test]
fn a_sqlite_store_of_the_user_is_used_and_nothing_is_left_in_it() {
    let place = Place::new();
    let orders = place.file("orders.jsonl", &few_events(12));
    let store = place.file("locks.db", b"");
    let store_url = format!("sqlite:{}", store.display());
    let report = place.report(&["--no-html", "--store", &store_url, "--orders", orders.to_str().unwrap()]);
    check(&report, 12);
    assert_eq!(report["store"], store_url);
    let connection = rusqlite::Connection::open(&store).unwrap();
    let rows = |table: &str| -> u32 {
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!((rows("lease"), rows("waiter")), (0, 0));
    let minted: i64 = connection.query_row("SELECT last FROM fence", [], |row| row.get(0)).unwrap();
    assert!(minted > 0, "the store was used");
}

#[test]
fn a_server_of_the_user_is_used_and_nothing_is_left_in_it() {
    for_each_server("a_server_of_the_user_is_used_and_nothing_is_left_in_it", |server| {
        let place = Place::new();
        let orders = place.file("orders.jsonl", &few_events(12));
        let url = format!("redis://{}/", server.address());
        let arguments = ["--no-html", "--store", &url, "--orders", orders.to_str().unwrap()];
        check(&place.report(&arguments), 12);
        assert_eq!(server.cli(&["DBSIZE"]).unwrap(), "0", "{}", server.cli(&["KEYS", "*"]).unwrap());
        let calls = server.command_stats().unwrap();
        assert!(calls.values().any(|command| command.calls > 36), "the server was used");
    });
}

#[test]
fn the_table_tells_the_same_for_people() {
    let place = Place::new();
    let orders = place.file("orders.jsonl", &few_events(6));
    let output = place.run(&["--orders", orders.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for words in [
        "6 orders in 7 payment events (1 delivered twice), each event to 3 worker processes.",
        "lock + seal + idempotency key",
        "its stale write was accepted",
        "its stale write was refused",
        "asked twice, 1 parcel",
        "with the seal a stale write cannot get in",
        "check on write only   2 writes accepted, 9 boxes left: an update is lost",
        "seal before the read  1 write accepted, 1 refused (token …",
        "9 boxes left: nothing is lost",
        "Who held which order when: leasehold-demo.html",
    ] {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
    assert!(!text.contains('\x1b'), "colours are for terminals");
    assert_eq!(place.left(), ["leasehold-demo.html"]);
}

#[test]
fn one_order_is_enough() {
    let place = Place::new();
    let orders = place.file("orders.jsonl", &few_events(1));
    let report = place.report(&["--no-html", "--orders", orders.to_str().unwrap()]);
    assert_eq!(way(&report, "lock-fencing")["freezes"].as_array().unwrap().len(), 1);
    assert_eq!(way(&report, "lock-fencing")["stale_writes_refused"], 1);
}
