//! The generated pages are those that would be generated now.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use xtask::{field_cases, guards, page};

#[test]
fn the_page_of_field_cases_is_up_to_date() {
    let text = field_cases::page(&xtask::root()).unwrap();
    page::check(&xtask::root(), field_cases::PAGE, &text, "field-cases").unwrap();
}

#[test]
fn the_page_of_guards_is_up_to_date() {
    let text = guards::page(&xtask::root()).unwrap();
    page::check(&xtask::root(), guards::PAGE, &text, "guards").unwrap();
}
