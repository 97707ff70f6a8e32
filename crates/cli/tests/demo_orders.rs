//! Where `assets/orders.jsonl` comes from: a morning of payment events as a payment provider delivers them, made
//! by a fixed rule. The file must be what the rule makes; `LEASEHOLD_WRITE_ORDERS=1` writes it anew.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::path::Path;

const ORDERS: usize = 1_000;
/// Orders paid in two parts, so with two events of different ids.
const PAID_IN_TWO_PARTS: usize = 70;
/// Events delivered twice, as happens when the provider misses an acknowledgement.
const DELIVERED_TWICE: usize = 80;
/// 2026-11-27 08:00 UTC, the first order.
const OPENING_MS: u64 = 8 * 3_600_000;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/orders.jsonl");

/// The generator `SplitMix64` (Steele, Lea and Flood, 2014): the same numbers everywhere and for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }

    fn letters(&mut self, count: usize) -> String {
        const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
        (0..count).map(|_| char::from(CROCKFORD[usize::try_from(self.below(32)).unwrap()])).collect()
    }
}

struct Delivery {
    at_ms: u64,
    line: String,
}

fn orders_file() -> String {
    let mut random = Random(20_261_127);
    let mut deliveries = Vec::new();
    let mut number = 48_210;
    let mut paid_ms = OPENING_MS;
    for index in 0..ORDERS {
        number += 1 + random.below(3);
        paid_ms += random.below(2_600);
        let customer = customer(&mut random);
        let currency = random.pick(&["EUR", "EUR", "EUR", "EUR", "GBP", "SEK", "USD"]);
        let cents = 990 + random.below(24_000) / 5 * 5;
        let parts: &[u64] = if index % (ORDERS / PAID_IN_TWO_PARTS) == 9 && index < 14 * PAID_IN_TWO_PARTS {
            &[cents / 4, cents - cents / 4]
        } else {
            &[cents]
        };
        for part in parts {
            let line = event(&mut random, number, *part, currency, paid_ms, customer.as_deref());
            // Most arrive at once, some a little late: later ones overtake them.
            let late_ms = if random.below(6) == 0 { random.below(25_000) } else { random.below(1_500) };
            deliveries.push(Delivery { at_ms: paid_ms + late_ms, line });
            paid_ms += 900;
        }
    }
    let events = deliveries.len();
    for again in 0..DELIVERED_TWICE {
        let first = &deliveries[again * events / DELIVERED_TWICE + again % 7];
        let at_ms = first.at_ms + 800 + random.below(45_000);
        let line = first.line.clone();
        deliveries.push(Delivery { at_ms, line });
    }
    deliveries.sort_by_key(|delivery| delivery.at_ms);
    deliveries.into_iter().map(|delivery| delivery.line + "\n").collect()
}

fn customer(random: &mut Random) -> Option<String> {
    let id = random.letters(8).to_lowercase();
    let country = random.pick(&["DE", "NL", "FR", "AT", "BE", "SE", "GB", "IT", "ES", "US"]);
    // Guests have no account.
    (random.below(5) != 0).then(|| format!(r#"{{"id":"cus_{id}","country":"{country}"}}"#))
}

fn event(
    random: &mut Random,
    order: u64,
    cents: u64,
    currency: &str,
    paid_ms: u64,
    customer: Option<&str>,
) -> String {
    let mut line = format!(
        r#"{{"event_id":"evt_01KB{}","type":"payment.captured","order_id":"ORD-{order}","amount":"{}.{:02}","currency":"{currency}","paid_at":"{}","method":"{}""#,
        random.letters(12),
        cents / 100,
        cents % 100,
        time_of_day(paid_ms),
        random.pick(&["card", "card", "card", "paypal", "ideal", "klarna"]),
    );
    if let Some(customer) = customer {
        write!(line, r#","customer":{customer}"#).unwrap();
    }
    line + "}"
}

fn time_of_day(ms: u64) -> String {
    let (seconds, ms) = (ms / 1_000, ms % 1_000);
    format!("2026-11-27T{:02}:{:02}:{:02}.{ms:03}Z", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

#[test]
fn the_shipped_orders_are_what_the_rule_makes() {
    let made = orders_file();
    if std::env::var_os("LEASEHOLD_WRITE_ORDERS").is_some() {
        std::fs::create_dir_all(Path::new(FILE).parent().unwrap()).unwrap();
        std::fs::write(FILE, &made).unwrap();
    }
    let shipped = std::fs::read_to_string(FILE).unwrap();
    assert!(
        shipped == made,
        "assets/orders.jsonl was edited by hand, or the rule was changed: write it anew"
    );
}

#[test]
fn the_shipped_orders_hold_what_a_provider_does_to_its_customers() {
    let text = std::fs::read_to_string(FILE).unwrap();
    let field = |line: &str, name: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        value[name].as_str().unwrap().to_owned()
    };
    let mut deliveries: HashMap<String, usize> = HashMap::new();
    let mut orders = HashSet::new();
    let mut newest = String::new();
    let mut out_of_order = 0;
    for line in text.lines() {
        *deliveries.entry(field(line, "event_id")).or_default() += 1;
        orders.insert(field(line, "order_id"));
        let paid_at = field(line, "paid_at");
        out_of_order += usize::from(paid_at < newest);
        newest = newest.max(paid_at);
    }
    let twice = deliveries.values().filter(|times| **times == 2).count();
    assert_eq!(orders.len(), ORDERS);
    assert_eq!(deliveries.len(), ORDERS + PAID_IN_TWO_PARTS);
    assert_eq!(twice, DELIVERED_TWICE);
    assert!(out_of_order > 100, "{out_of_order} out of order");
}
