//! The page: one file that needs nothing else, whatever the orders are called.

use std::fs;

use crate::common::Place;

fn data_of(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn the_page_is_one_file_that_loads_nothing_and_runs_nothing_of_the_input() {
    let place = Place::new();
    let evil = "</script><script>alert(1)</script><!--";
    let event = |order: &str| {
        serde_json::json!({
            "event_id": order, "order_id": order, "amount": "1", "currency": "EUR",
            "paid_at": "2026-11-27T08:00:00Z",
        })
    };
    let events = ["a", evil, "c", "d"].map(|order| event(order).to_string()).join("\n");
    let orders = place.file("orders.jsonl", events.as_bytes());
    place.report(&["--orders", orders.to_str().unwrap(), "--html", "page.html"]);
    let page = fs::read_to_string(place.work().join("page.html")).unwrap();
    for loaded in [" src=", "<link", "@import", "url(http", "fetch(", "import("] {
        assert!(!page.contains(loaded), "{loaded}");
    }
    let data = data_of(&page);
    assert_eq!(data["orders"][1], evil);
    assert_eq!(page.matches("<script").count(), 2, "those of the page itself");
    let runs = data["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for run in runs {
        assert_eq!(run["lanes"].as_array().unwrap().len(), 3);
        assert_eq!(run["lanes"][0].as_array().unwrap().len(), 4);
        for freeze in run["freezes"].as_array().unwrap() {
            let here = freeze["visits"].as_array().unwrap().iter();
            let here: Vec<_> = here.filter(|visit| visit["position"] == freeze["position"]).collect();
            assert_eq!(here.len(), 3, "each worker's part is there: {freeze:#}");
        }
    }
    assert_eq!(place.left(), ["page.html"]);
}

#[test]
fn an_old_page_is_replaced_and_its_mode_is_that_of_a_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let orders = place.file("orders.jsonl", &crate::common::few_events(2));
    fs::write(place.work().join("leasehold-demo.html"), "old").unwrap();
    fs::write(place.work().join("new"), "").unwrap();
    place.report(&["--orders", orders.to_str().unwrap()]);
    let page = place.work().join("leasehold-demo.html");
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));
    let mode = |path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(page), mode(place.work().join("new")));
}
