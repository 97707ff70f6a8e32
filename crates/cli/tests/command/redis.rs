//! The command on a Redis server: hand-over, missing rights, a server that goes away, passwords.

use leasehold::{Attempt, Client, Released};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{RedisServer, for_each_server};

use crate::common::{Running, Sandbox, err, out, read};

fn held_and_awaited(sandbox: &Sandbox, options: &[&str], script: &str) -> (Running, Running) {
    let first = Running::start(&mut sandbox.job(&[], "echo > held; while [ ! -e go ]; do sleep 0.01; done"));
    sandbox.wait_for_file("held");
    let next = Running::start(&mut sandbox.job(options, script));
    sandbox.wait_for_waiter("job");
    (first, next)
}

#[test]
fn a_lease_that_was_handed_over_is_confirmed_before_the_command_starts() {
    for_each_server("a_lease_that_was_handed_over_is_confirmed_before_the_command_starts", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        // The claim of a hand-over lasts 3 s; a supervisor that took it for the lease would stop the command.
        let (first, next) =
            held_and_awaited(&sandbox, &["-q", "--ttl", "60s", "--grace", "25s"], "sleep 2; exit 3");
        std::fs::write(sandbox.path("go"), "").unwrap();
        assert_eq!(first.finish().0, Some(0));
        assert_eq!(next.finish(), (Some(3), String::new()));
    });
}

/// F118: The command and the library that use one name exclude each other: the key is the namespace and the name, and
/// nothing is added by either.
/// F061: The command passes on the owner token as the key holds it, byte for byte.
#[test]
fn f118_f061_the_command_and_the_library_share_names_and_tokens() {
    for_each_server("f118_f061_the_command_and_the_library_share_names_and_tokens", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(Client::connect(&server.url())).unwrap();
        let name = "order:{123} caf\u{e9}";
        let lock = client.lock(name).unwrap();
        let script = "echo \"$LEASEHOLD_OWNER_TOKEN\" > token; while [ ! -e go ]; do sleep 0.01; done";
        let run = Running::start(&mut sandbox.leasehold(["run", name, "--", "sh", "-c", script]));
        let token = sandbox.line_of("token");
        assert_eq!(server.cli(&["GET", &format!("lock:{name}")]).unwrap(), token);
        assert!(matches!(runtime.block_on(lock.try_acquire()).unwrap(), Attempt::Busy(_)));
        std::fs::write(sandbox.path("go"), "").unwrap();
        assert_eq!(run.finish().0, Some(0));
        let Attempt::Acquired(guard) = runtime.block_on(lock.try_acquire()).unwrap() else { panic!("busy") };
        let output = sandbox.output(["run", "--no-wait", name, "--", "true"]);
        assert_eq!(output.status.code(), Some(75), "{}", err(&output));
        assert_eq!(runtime.block_on(guard.release()).unwrap(), Released::Freed);
    });
}

/// F031: An interrupted wait leaves no entry in the queue on the server.
#[test]
fn f031_an_interrupted_wait_leaves_the_queue() {
    for_each_server("f031_an_interrupted_wait_leaves_the_queue", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        let (_first, next) = held_and_awaited(&sandbox, &[], "echo > ran");
        next.signal(rustix::process::Signal::INT);
        assert_eq!(next.finish().0, Some(130));
        assert_eq!(sandbox.shown("job")["waiters"], serde_json::json!([]));
        assert!(!sandbox.path("ran").exists());
    });
}

/// F022: A command that is cut off from the server has ended before the next one starts.
#[test]
fn f022_a_command_cut_off_from_the_server_is_gone_before_the_next_one_starts() {
    for_each_server("f022_a_command_cut_off_from_the_server_is_gone_before_the_next_one_starts", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        let proxy = Proxy::before(server).unwrap();
        let script = "trap '' TERM; echo > held; while :; do echo first >> log; sleep 0.01; done";
        let mut cut_off = sandbox.job(&["--ttl", "3s"], script);
        let run = Running::start(cut_off.env("LEASEHOLD_STORE", server.url_through(&proxy)));
        sandbox.wait_for_file("held");
        let next = Running::start(&mut sandbox.job(&["-q"], "echo next >> log"));
        sandbox.wait_for_waiter("job");
        proxy.half_open();
        assert_eq!(next.finish().0, Some(0));
        let (code, said) = run.finish();
        assert_eq!(code, Some(79), "{said}");
        let log = read(&sandbox.path("log"));
        assert!(log.ends_with("first\nnext\n"), "{said}\n{log}");
    });
}

/// F084: A server that is down gives 69, one that refuses access 77.
#[test]
fn f084_a_server_that_is_down_gives_69_and_one_that_refuses_gives_77() {
    for_each_server("f084_a_server_that_is_down_gives_69_and_one_that_refuses_gives_77", |server| {
        let sandbox = Sandbox::with_store("redis://127.0.0.1:1/");
        let down = sandbox.output(["--store-timeout", "500ms", "run", "job", "--", "touch", "ran"]);
        assert_eq!(down.status.code(), Some(69), "{}", err(&down));

        let users = "user default off\nuser admin on >x ~* &* +@all\nuser app on >p%40ss ~* &* +@all -set\n";
        let guarded =
            RedisServer::builder(server.kind()).acl_file(users).admin_login("admin", "x").start().unwrap();
        let url = format!("redis://app:p%2540ss@127.0.0.1:{}/", guarded.port());
        let denied = sandbox.output(["--store", &url, "run", "job", "--", "touch", "ran"]);
        assert_eq!(denied.status.code(), Some(77), "{}", err(&denied));
        assert!(err(&denied).contains("doctor --acl"), "{}", err(&denied));
        let wrong = url.replace("p%2540ss", "wrong-word");
        let refused =
            sandbox.output(["--store", &wrong, "--store-timeout", "1s", "run", "job", "--", "touch", "ran"]);
        assert_eq!(refused.status.code(), Some(77), "{}", err(&refused));
        for output in [denied, refused] {
            let said = err(&output) + &out(&output);
            assert!(!said.contains("p%40ss") && !said.contains("wrong-word"), "trap 44: {said}");
        }
        assert!(!sandbox.path("ran").exists());
    });
}

#[test]
fn namespaces_of_urls_tell_nested_runs_apart() {
    for_each_server("namespaces_of_urls_tell_nested_runs_apart", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        let url = |namespace: &str| format!("{}?namespace={namespace}:", server.url().trim_end_matches('/'));
        for (outer, inner, code) in [("a", "a", "2\n"), ("a", "b", "0\n")] {
            let script = format!(r#""$0" --store '{}' run --wait 10s job -- true; echo $?"#, url(inner));
            let output = sandbox.output([
                "--store",
                &url(outer),
                "run",
                "job",
                "--",
                "sh",
                "-c",
                &script,
                env!("CARGO_BIN_EXE_leasehold"),
            ]);
            assert_eq!(out(&output), code, "{outer} {inner}: {}", err(&output));
        }
    });
}

#[test]
fn something_else_than_redis_is_told_in_one_line() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Ends with the test's process: it may be connected to any number of times.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html>\n</html>\n");
        }
    });
    let sandbox = Sandbox::with_store(&format!("redis://127.0.0.1:{port}/"));
    let output = sandbox.output(["--store-timeout", "1s", "ls"]);
    assert_eq!(output.status.code(), Some(69), "{}", err(&output));
    assert!(err(&output).contains("is this a Redis or Valkey server?"), "{}", err(&output));
    assert_eq!(err(&output).lines().count(), 1, "{}", err(&output));
}
