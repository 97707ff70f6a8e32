//! The command on Redis servers of every set-up: sound ones, wrong ones, and those that allow a user little.

use std::process::Output;
use std::time::{Duration, Instant};

use leasehold_testkit::ports::PortLease;
use leasehold_testkit::servers::{RedisServer, ServerKind, for_each_server};

use crate::common::{PATIENCE, Running, Sandbox, err, out, wait_until};

const QUICK: [&str; 2] = ["--store-timeout", "1s"];

/// Runs a command under the lock; if it ran, a file is there.
fn run_on(sandbox: &Sandbox, url: &str) -> Output {
    let _ = std::fs::remove_file(sandbox.path("ran"));
    let mut args = vec!["--store", url];
    args.extend(QUICK);
    args.extend(["run", "--no-wait", "job", "--", "touch", "ran"]);
    sandbox.output(args)
}

fn assert_refused(sandbox: &Sandbox, url: &str, code: i32, words: &[&str]) {
    let output = run_on(sandbox, url);
    let said = err(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
    assert!(!sandbox.path("ran").exists(), "the command ran without a lock: {said}");
}

fn assert_runs(sandbox: &Sandbox, url: &str) {
    let output = run_on(sandbox, url);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(sandbox.path("ran").exists());
}

/// A user with these rights.
fn user(server: &RedisServer, rights: &[&str]) -> String {
    let mut words = vec!["ACL", "SETUSER", "app", "reset", "on", ">pw"];
    words.extend(rights);
    let reply = server.command(&words).unwrap();
    assert!(!reply.is_error(), "{reply:?}");
    format!("redis://app:pw@{}/", server.address())
}

fn keys(server: &RedisServer) -> Vec<String> {
    let reply = server.command(&["KEYS", "*"]).unwrap();
    reply.items().unwrap().iter().map(|key| key.text().unwrap()).collect()
}

#[test]
fn ls_show_and_break_on_a_server_tell_what_is_there() {
    for_each_server("ls_show_and_break_on_a_server_tell_what_is_there", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        assert_eq!(out(&sandbox.output(["ls"])), "");
        let holding = "echo $LEASEHOLD_FENCING_TOKEN > held; exec sleep 600";
        let holder = Running::start(&mut sandbox.job(&["--ttl", "3s"], holding));
        let before: u64 = sandbox.line_of("held").parse().unwrap();
        let waiter = Running::start(&mut sandbox.job(&["-q"], "echo $LEASEHOLD_FENCING_TOKEN > token"));
        sandbox.wait_for_waiter("job");
        let listed = out(&sandbox.output(["ls"]));
        assert!(listed.contains("job") && listed.contains(&format!(":{}", holder.pid())), "{listed}");
        let shown = out(&sandbox.output(["show", "job"]));
        let mine = format!(":{}", waiter.pid());
        assert!(shown.lines().any(|line| line.contains("1. ") && line.ends_with(&mine)), "{shown}");
        let broken = sandbox.output(["break", "job", "--yes"]);
        assert_eq!(broken.status.code(), Some(0), "{}", err(&broken));
        // The holder stops before the next one starts.
        let (code, said) = holder.finish();
        assert_eq!(code, Some(79), "{said}");
        assert_eq!(waiter.finish().0, Some(0));
        let token: u64 = sandbox.line_of("token").parse().unwrap();
        assert!(token > before);
        wait_until("nothing is left but the fencing counter", || keys(server) == ["lock:~fence"]);
        let channels = server.command(&["PUBSUB", "CHANNELS", "*"]).unwrap();
        assert!(channels.items().unwrap().is_empty(), "{channels:?}");
    });
}

#[test]
fn doctor_on_a_server_exits_with_0_only_when_nothing_is_wrong() {
    for_each_server("doctor_on_a_server_exits_with_0_only_when_nothing_is_wrong", |server| {
        let sound = RedisServer::builder(server.kind()).config("maxmemory", "100mb").append_only();
        let sound = sound.config("maxmemory-policy", "noeviction").start().unwrap();
        let sandbox = Sandbox::with_store(&sound.url());
        assert!(sandbox.job(&[], "true").status().unwrap().success());
        let output = sandbox.output(["doctor"]);
        assert_eq!(output.status.code(), Some(0), "{}", out(&output));
        sound.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
        let output = sandbox.output(["doctor"]);
        assert_eq!(output.status.code(), Some(1), "{}", out(&output));
        assert!(out(&output).contains("eviction"), "{}", out(&output));
        assert_eq!(keys(&sound), ["lock:~fence"], "doctor left something behind");
    });
}

#[test]
fn a_cluster_node_and_a_sentinel_are_refused_with_the_url_to_write() {
    let sandbox = Sandbox::new();
    let node = RedisServer::builder(ServerKind::Redis7).config("cluster-enabled", "yes").start().unwrap();
    assert_refused(&sandbox, &node.url(), 2, &["redis+cluster://"]);

    let port = PortLease::take().unwrap();
    let settings = sandbox.path("sentinel.conf");
    std::fs::write(&settings, format!("port {}\nbind 127.0.0.1\n", port.port())).unwrap();
    let program = ServerKind::Redis7.executable().unwrap();
    let mut sentinel = std::process::Command::new(program);
    let _sentinel = Running::start(sentinel.arg(&settings).arg("--sentinel"));
    wait_until("the Sentinel listens", || std::net::TcpStream::connect(port.address()).is_ok());
    assert_refused(&sandbox, &format!("redis://{}/", port.address()), 2, &["redis+sentinel://"]);
}

#[test]
fn trap_46_data_of_others_under_the_key_is_named_and_left_alone() {
    for_each_server("trap_46_data_of_others_under_the_key_is_named_and_left_alone", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        server.command(&["HSET", "lock:job", "field", "value"]).unwrap();
        assert_refused(&sandbox, &server.url(), 70, &["job", "hash"]);
        let shown = sandbox.output(["show", "job"]);
        assert_eq!(shown.status.code(), Some(70), "{}", err(&shown));
        assert_eq!(server.cli(&["HGET", "lock:job", "field"]).unwrap(), "value");
        // A key of the documented pattern is a lock of somebody else.
        server.command(&["DEL", "lock:job"]).unwrap();
        server.command(&["SET", "lock:job", "their-value", "PX", "60000"]).unwrap();
        assert_refused(&sandbox, &server.url(), 75, &["not Leasehold"]);
        assert_eq!(sandbox.shown("job")["holder"]["kind"], "foreign");
        assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), "their-value");
    });
}

#[test]
fn trap_45_users_with_few_rights_run_commands_or_are_told_what_is_missing() {
    for_each_server("trap_45_users_with_few_rights_run_commands_or_are_told_what_is_missing", |server| {
        let sandbox = Sandbox::new();
        let no_scripts = user(server, &["~lock:*", "&lock:*", "+@all", "-@scripting"]);
        assert_refused(&sandbox, &no_scripts, 77, &["scripting=off"]);
        // Waiters poll instead.
        assert_runs(&sandbox, &user(server, &["~lock:*", "resetchannels", "+@all"]));
        let no_keys = user(server, &["~cache:*", "&*", "+@all"]);
        assert_refused(&sandbox, &no_keys, 77, &["~lock:*"]);
        // The prefix that is allowed is one to ask for.
        assert_runs(&sandbox, &format!("{no_keys}?namespace=cache:"));
        assert_eq!(keys(server).into_iter().filter(|key| !key.ends_with("~fence")).count(), 0);
    });
}

/// F142: The line that `doctor --acl` prints gives enough rights for every command.
#[test]
fn trap_45_f142_the_line_that_doctor_acl_prints_is_enough_for_every_command() {
    for_each_server("trap_45_f142_the_line_that_doctor_acl_prints", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        let printed = out(&sandbox.output(["doctor", "--acl"]));
        let rights: Vec<_> = printed.trim_end().split(' ').collect();
        let sandbox = Sandbox::with_store(&user(server, &rights));
        let holder = Running::start(&mut sandbox.job(&[], "echo > held; exec sleep 600"));
        sandbox.line_of("held");
        let waiter = Running::start(&mut sandbox.job(&["-q"], "true"));
        sandbox.wait_for_waiter("job");
        assert!(out(&sandbox.output(["ls"])).contains("job"));
        assert!(!out(&sandbox.output(["doctor"])).contains("denied to this user"));
        let broken = sandbox.output(["break", "job", "--yes", "--now"]);
        assert_eq!(broken.status.code(), Some(0), "{}", err(&broken));
        assert_eq!(waiter.finish().0, Some(0));
        assert_eq!(holder.finish().0, Some(79));
    });
}

#[cfg(target_os = "linux")]
#[test]
fn trap_44_no_process_of_a_run_shows_the_password_and_no_listing_an_owner_token() {
    let server = RedisServer::builder(ServerKind::default()).password("hush/word").start().unwrap();
    let sandbox = Sandbox::with_store(&server.url());
    let script = "cat /proc/$PPID/cmdline > wrapper; echo $LEASEHOLD_OWNER_TOKEN > token; exec sleep 600";
    let holder = Running::start(&mut sandbox.job(&[], script));
    let token = sandbox.line_of("token");
    let secret = token.split('@').next().unwrap();
    assert!(secret.len() > 20, "{token}");
    let wrapper = std::fs::read_to_string(sandbox.path("wrapper")).unwrap();
    assert!(wrapper.contains("run") && !wrapper.contains("hush"), "{wrapper}");
    let mut looked_at = 0;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(process.path().join("stat")) else { continue };
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if parent == Some(holder.pid().to_string().as_str()) {
            looked_at += 1;
            let arguments = std::fs::read_to_string(process.path().join("cmdline")).unwrap();
            assert!(!arguments.contains("hush") && !arguments.contains(secret), "{arguments}");
        }
    }
    assert!(looked_at >= 2, "the command and its watchdog: {looked_at}");
    for args in [&["ls"][..], &["ls", "--json"], &["show", "job"], &["show", "job", "--json"], &["doctor"]] {
        let output = sandbox.output(args);
        let said = out(&output) + &err(&output);
        assert!(!said.contains("hush") && !said.contains(secret), "{args:?}: {said}");
    }
}

/// F127: On a server, waiting commands of a millisecond follow each other without fixed pauses.
#[test]
fn f127_short_commands_follow_each_other_without_a_pause() {
    for_each_server("f127_short_commands_follow_each_other_without_a_pause", |server| {
        let sandbox = Sandbox::with_store(&server.url());
        for (script, least) in [("true", Duration::ZERO), ("sleep 0.2", Duration::from_millis(1_600))] {
            let started = Instant::now();
            let jobs: Vec<_> = (0..8).map(|_| Running::start(&mut sandbox.job(&["-q"], script))).collect();
            for job in jobs {
                assert_eq!(job.finish().0, Some(0));
            }
            let took = started.elapsed();
            eprintln!("{}: eight times {script:?} in {took:?}", server.kind());
            assert!(took >= least, "two ran at once: {took:?}");
            // A pause of some seconds between two of them would be 30 s.
            assert!(took < least + PATIENCE / 3, "{took:?}");
        }
    });
}
