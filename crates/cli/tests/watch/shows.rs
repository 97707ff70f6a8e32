//! What the view shows of real locks, on SQLite and on servers.

use std::time::Duration;

use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::for_each_server;
use rustix::process::Signal;

use crate::common::{Running, Sandbox};
use crate::terminal::Terminal;

/// A command that holds a name until it is told to go.
fn holding(sandbox: &Sandbox, name: &str, options: &[&str]) -> Running {
    let mut args = vec!["run", "-q"];
    args.extend(options);
    args.extend([name, "--", "sh", "-c", "echo > held-$0; while [ ! -e go-$0 ]; do sleep 0.02; done", name]);
    Running::start(&mut sandbox.leasehold(args))
}

fn held(sandbox: &Sandbox, name: &str) -> Running {
    let holder = holding(sandbox, name, &[]);
    sandbox.wait_for_file(&format!("held-{name}"));
    holder
}

fn go(sandbox: &Sandbox, name: &str) {
    std::fs::write(sandbox.path(&format!("go-{name}")), "").unwrap();
}

fn pid(running: &Running) -> String {
    format!(":{}", running.pid())
}

/// What every store shows.
fn holders_waiters_and_endings(sandbox: &Sandbox) {
    let first = held(sandbox, "job");
    let next = Running::start(&mut sandbox.job(&["-q"], "sleep 600"));
    sandbox.wait_for_waiter("job");
    let Some(terminal) = Terminal::watching(sandbox, "--interval 200ms") else { return };

    let row = terminal.shows_together(&["job ", &pid(&first), &pid(&next), " 1: "]);
    assert!(row.contains("s+ "), "held since before the watch: {row}");
    terminal.shows("1 held, 1 waiting");
    go(sandbox, "job");
    terminal.shows_together(&["job ", &pid(&first), "handed over to ", &pid(&next)]);
    let row =
        terminal.shows_line("the next holder", |line| line.starts_with("job ") && line.contains(&pid(&next)));
    assert!(!row.contains('+'), "its beginning was seen: {row}");

    let other = holding(sandbox, "other", &["--ttl", "2s"]);
    terminal.shows_line("another name", |line| line.starts_with("other "));
    go(sandbox, "other");
    terminal.shows_together(&["other ", &pid(&other), "released after "]);

    let crashed = holding(sandbox, "crash", &["--ttl", "2s"]);
    terminal.shows_line("the name", |line| line.starts_with("crash "));
    crashed.signal(Signal::KILL);
    terminal.shows_together(&["crash ", &pid(&crashed), "EXPIRED after "]);

    assert!(sandbox.output(["break", "--yes", "job"]).status.success());
    terminal.shows_together(&["job ", &pid(&next), "BROKEN by "]);
    terminal.shows_together(&["job ", "a lease broken by "]);
    terminal.key("l");
    terminal.shows("LOST LATELY");
    terminal.waits("only losses", |text| !text.contains("handed over to") && text.contains("EXPIRED"));
    terminal.key("q");
    terminal.ended_with(0);
}

#[test]
fn holders_waiters_and_endings_on_sqlite() {
    holders_waiters_and_endings(&Sandbox::new());
}

#[test]
fn holders_waiters_and_endings_on_servers() {
    for_each_server("holders_waiters_and_endings_on_servers", |server| {
        holders_waiters_and_endings(&Sandbox::with_store(&server.url()));
    });
}

#[test]
fn a_server_that_does_not_answer_is_told_of_and_shown_again_when_it_does() {
    for_each_server("a_server_that_does_not_answer_is_told_of_and_shown_again", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        let proxy = Proxy::before(server).unwrap();
        let _holder = held(&sandbox, "job");
        let url = server.url_through(&proxy);
        let args = format!("--store {url} --store-timeout 2s --interval 200ms");
        let Some(terminal) = Terminal::watching(&sandbox, &args) else { return };
        terminal.shows("1 held");
        for refused in [false, true] {
            proxy.half_open();
            if refused {
                proxy.refuse().unwrap();
                proxy.cut();
            }
            terminal.shows_together(&["no answer for ", "shown: "]);
            terminal.shows_line("the last state", |line| line.starts_with("job "));
            if refused {
                proxy.accept().unwrap();
            }
            proxy.heal();
            terminal.shows("1 held");
        }
        terminal.waits("nothing ended", |text| !text.contains(" ago  job"));
        terminal.key("C-c");
        terminal.ended_with(0);
    });
}

#[test]
fn a_server_that_is_down_at_first_is_waited_for() {
    for_each_server("a_server_that_is_down_at_first_is_waited_for", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        let proxy = Proxy::before(server).unwrap();
        proxy.refuse().unwrap();
        let args = format!("--store {} --store-timeout 1s --interval 200ms", server.url_through(&proxy));
        let Some(terminal) = Terminal::watching(&sandbox, &args) else { return };
        terminal.shows("no answer for ");
        proxy.accept().unwrap();
        terminal.shows("0 held");
        terminal.key("q");
        terminal.ended_with(0);
    });
}

#[test]
fn keys_sort_filter_and_scroll() {
    let sandbox = Sandbox::new();
    let _a = held(&sandbox, "a-old");
    let _c = held(&sandbox, "c-young");
    let Some(terminal) = Terminal::watching(&sandbox, "--interval 100ms") else { return };
    terminal.shows("2 held");
    let order = |first: &str, second: &str| {
        terminal.waits(&format!("{first} before {second}"), |text| {
            let place = |name: &str| text.lines().position(|line| line.starts_with(name));
            matches!((place(first), place(second)), (Some(one), Some(other)) if one < other)
        });
    };
    let _b = held(&sandbox, "b-new");
    order("a-old", "b-new");
    order("b-new", "c-young");
    terminal.key("n");
    order("c-young", "b-new");
    terminal.key("a");
    order("c-young", "b-new");
    terminal.key("a");
    order("b-new", "a-old");

    terminal.key("/");
    terminal.type_in("YOUNGx");
    terminal.shows("filter: YOUNGx_");
    terminal.key("BSpace");
    terminal.waits("only one", |text| text.contains("1 of 3 held") && !text.contains("a-old"));
    terminal.key("Enter");
    terminal.shows("filter: YOUNG  (Esc");
    terminal.key("Escape");
    order("b-new", "a-old");

    // Room for a single name.
    terminal.resize(60, 3);
    terminal.key("n");
    terminal.shows_line("the first", |line| line.starts_with("a-old"));
    terminal.key("End");
    terminal.shows_line("the last", |line| line.starts_with("c-young"));
    terminal.key("Up");
    terminal.shows_line("the one before", |line| line.starts_with("b-new"));
    terminal.key("Home");
    terminal.shows_line("the first", |line| line.starts_with("a-old"));
}

#[test]
fn every_size_of_terminal_shows_what_it_has_room_for() {
    let sandbox = Sandbox::new();
    let _holder = held(&sandbox, "job");
    let Some(terminal) = Terminal::watching(&sandbox, "--interval 100ms") else { return };
    terminal.shows("ENDED LATELY");
    for (columns, lines) in [(20, 4), (10, 2), (3, 1), (1, 1), (300, 100)] {
        terminal.resize(columns, lines);
        std::thread::sleep(Duration::from_millis(400));
        assert!(terminal.is_taken(), "{columns}x{lines}: {}", terminal.text());
    }
    terminal.shows("ENDED LATELY");
    terminal.resize(20, 4);
    terminal.waits("a short form", |text| text.contains("job ") && !text.contains("HOLDER"));
    terminal.resize(100, 24);
    terminal.shows("HOLDER");
    terminal.key("q");
    terminal.ended_with(0);
}
