//! The server helpers against real servers of every kind.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_testkit::resp::{Connection, RespValue};
use leasehold_testkit::servers::{
    Data, MonitorLine, RedisServer, ServerKind, for_each_server, kinds_to_test,
};

const LONG: Duration = Duration::from_secs(10);

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_running(process_id: u32) -> bool {
    // Where nobody collects orphans a dead process stays listed, as a zombie.
    if let Ok(status) = std::fs::read_to_string(format!("/proc/{process_id}/status")) {
        return !status.contains("State:\tZ");
    }
    let signal = Command::new("kill").args(["-0", &process_id.to_string()]).stderr(Stdio::null()).status();
    signal.is_ok_and(|status| status.success())
}

#[test]
fn each_kind_is_what_its_name_says() {
    for_each_server("each_kind_is_what_its_name_says", |server| {
        let info = server.info("server").unwrap();
        let version = match server.kind() {
            ServerKind::Valkey9 => &info["valkey_version"],
            _ => &info["redis_version"],
        };
        let knows = |command: &str| {
            server.command(&["COMMAND", "INFO", command]).unwrap().items().unwrap()[0].is_null()
        };
        let (delex, delifeq) = (!knows("DELEX"), !knows("DELIFEQ"));
        if std::env::var_os("LEASEHOLD_REDIS_SERVER").is_some() && server.kind() == ServerKind::Redis7 {
            return;
        }
        match server.kind() {
            ServerKind::Redis7 => assert!(version.starts_with("7.") && !delex && !delifeq, "{version}"),
            ServerKind::Redis8 => assert!(version.starts_with("8.") && delex && !delifeq, "{version}"),
            ServerKind::Valkey9 => assert!(version.starts_with("9.") && !delex && delifeq, "{version}"),
        }
    });
}

#[test]
fn a_command_answers_what_the_server_says() {
    for_each_server("a_command_answers_what_the_server_says", |server| {
        assert_eq!(server.cli(&["SET", "k", "v"]).unwrap(), "OK");
        assert_eq!(server.command(&["GET", "k"]).unwrap(), RespValue::Bulk(b"v".to_vec()));
        assert!(server.command(&["GET", "none"]).unwrap().is_null());
        assert!(server.command(&["LPUSH", "k", "v"]).unwrap().is_error());
        assert!(server.cli(&["LPUSH", "k", "v"]).unwrap_err().to_string().contains("WRONGTYPE"));
    });
}

#[test]
fn a_dropped_server_leaves_no_process_and_no_folder() {
    for_each_server("a_dropped_server_leaves_no_process_and_no_folder", |server| {
        let other = RedisServer::start(server.kind()).unwrap();
        let (id, folder) = (other.process_id().unwrap(), other.folder().to_owned());
        assert!(is_running(id) && folder.exists());
        other.freeze().unwrap();
        drop(other);
        assert!(!is_running(id) && !folder.exists());
    });
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    for kind in kinds_to_test("a_server_outlives_the_thread_that_started_it") {
        let server = std::thread::spawn(move || RedisServer::start(kind).unwrap()).join().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(server.cli(&["PING"]).unwrap(), "PONG");
    }
}

#[test]
fn a_restart_keeps_or_loses_the_data_at_the_same_port() {
    for_each_server("a_restart_keeps_or_loses_the_data_at_the_same_port", |server| {
        let port = server.port();
        server.cli(&["SET", "k", "v"]).unwrap();
        server.restart(Data::Keep).unwrap();
        assert_eq!((server.cli(&["GET", "k"]).unwrap(), server.port()), ("v".into(), port));
        server.restart(Data::Lose).unwrap();
        assert_eq!(server.cli(&["GET", "k"]).unwrap(), "");
    });
}

#[test]
fn a_killed_server_keeps_its_data_only_if_it_appends() {
    for kind in kinds_to_test("a_killed_server_keeps_its_data_only_if_it_appends") {
        for (append_only, expected) in [(true, "v"), (false, "")] {
            let builder = RedisServer::builder(kind);
            let server = if append_only { builder.append_only() } else { builder }.start().unwrap();
            server.cli(&["SET", "k", "v"]).unwrap();
            server.kill().unwrap();
            assert!(server.command(&["PING"]).is_err(), "{kind} still answers");
            server.restart(Data::Keep).unwrap();
            assert_eq!(server.cli(&["GET", "k"]).unwrap(), expected, "{kind}, append only: {append_only}");
            server.restart(Data::Lose).unwrap();
            assert_eq!(server.cli(&["GET", "k"]).unwrap(), "", "{kind}, append only: {append_only}");
        }
    }
}

#[test]
fn a_frozen_server_answers_only_when_it_is_thawed() {
    for_each_server("a_frozen_server_answers_only_when_it_is_thawed", |server| {
        let mut connection = server.connect().unwrap();
        server.freeze().unwrap();
        connection.send(&["PING"]).unwrap();
        let silence = connection.read(Duration::from_millis(200)).unwrap_err();
        assert_eq!(silence.kind(), io::ErrorKind::TimedOut);
        server.thaw().unwrap();
        assert_eq!(connection.read(LONG).unwrap(), RespValue::Simple("PONG".into()));
    });
}

#[test]
fn a_password_with_special_characters_is_demanded_and_given() {
    let password = r#"a b"c\d#e@f/g%"#;
    for kind in kinds_to_test("a_password_with_special_characters_is_demanded_and_given") {
        let server = RedisServer::builder(kind).password(password).start().unwrap();
        assert_eq!(server.cli(&["PING"]).unwrap(), "PONG");
        let mut stranger = Connection::open(server.address()).unwrap();
        assert!(stranger.command(&["PING"]).unwrap().text().unwrap().starts_with("NOAUTH"));
        assert!(server.url().starts_with("redis://:a%20b%22c%5Cd%23e%40f%2Fg%25@127.0.0.1:"));
    }
}

#[test]
fn users_of_an_acl_file_have_the_rights_it_says() {
    for kind in kinds_to_test("users_of_an_acl_file_have_the_rights_it_says") {
        let server = RedisServer::builder(kind)
            .acl_file("user default off\nuser root on >secret ~* &* +@all\nuser app on >word ~lock:* +set\n")
            .admin_login("root", "secret")
            .start()
            .unwrap();
        assert_eq!(server.cli(&["SET", "other", "v"]).unwrap(), "OK");
        let mut app = Connection::open(server.address()).unwrap();
        app.command(&["AUTH", "app", "word"]).unwrap();
        assert_eq!(app.command(&["SET", "lock:a", "v"]).unwrap().text().unwrap(), "OK");
        assert!(app.command(&["SET", "other", "v"]).unwrap().text().unwrap().starts_with("NOPERM"));
    }
}

#[test]
fn a_configuration_line_and_the_unix_socket_take_effect() {
    for kind in kinds_to_test("a_configuration_line_and_the_unix_socket_take_effect") {
        let server = RedisServer::builder(kind).config("maxmemory", "7mb").unix_socket().start().unwrap();
        let limit = server.command(&["CONFIG", "GET", "maxmemory"]).unwrap();
        assert_eq!(limit.items().unwrap()[1].integer(), Some(7 * 1024 * 1024));
        UnixStream::connect(server.unix_socket().unwrap()).unwrap();
        assert_eq!(RedisServer::start(kind).unwrap().unix_socket(), None);
    }
}

#[test]
fn a_server_that_refuses_its_configuration_says_so_in_the_error() {
    for kind in kinds_to_test("a_server_that_refuses_its_configuration_says_so_in_the_error") {
        let error = RedisServer::builder(kind).config("no-such-setting", "1").start().unwrap_err();
        assert!(error.to_string().contains("no-such-setting"), "{error}");
    }
}

#[test]
fn the_monitor_tells_requests_from_what_scripts_did() {
    for_each_server("the_monitor_tells_requests_from_what_scripts_did", |server| {
        let monitor = server.monitor().unwrap();
        let other_monitor = server.monitor().unwrap();
        server.cli(&["SET", "before", "1"]).unwrap();
        monitor.clear().unwrap();
        server.cli(&["EVAL", "return redis.call('set', KEYS[1], ARGV[1])", "1", "k", "a \"b\"\n"]).unwrap();
        let requests = monitor.requests().unwrap();
        assert_eq!(requests.iter().map(MonitorLine::command).collect::<Vec<_>>(), ["EVAL"]);
        assert_eq!(requests[0].arguments[4], "a \"b\"\n");
        let inner = &monitor.lines().unwrap()[1];
        assert!(inner.is_from_script() && inner.arguments == ["set", "k", "a \"b\"\n"], "{inner:?}");
        assert_eq!(other_monitor.requests().unwrap().len(), 2);
        server.kill().unwrap();
        assert!(monitor.lines().is_err());
    });
}

#[test]
fn command_statistics_count_calls() {
    for_each_server("command_statistics_count_calls", |server| {
        server.cli(&["CONFIG", "RESETSTAT"]).unwrap();
        for _ in 0..3 {
            server.cli(&["SET", "k", "v"]).unwrap();
        }
        let stats = server.command_stats().unwrap();
        assert_eq!((stats["set"].calls, stats["set"].failed_calls), (3, 0));
    });
}

/// Only Linux can promise this (see `RedisServer`).
#[cfg(target_os = "linux")]
#[test]
fn a_server_dies_when_the_test_process_is_killed() {
    const ROLE: &str = "LEASEHOLD_TESTKIT_VICTIM";
    let test = "a_server_dies_when_the_test_process_is_killed";
    if let Some(file) = std::env::var_os(ROLE) {
        let server = RedisServer::start(kinds_to_test(test)[0]).unwrap();
        let (file, process_id) = (Path::new(&file), server.process_id().unwrap().to_string());
        std::fs::write(file.with_extension("new"), process_id).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
        std::thread::sleep(LONG * 3);
        return;
    }
    if kinds_to_test(test).is_empty() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("process-id");
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", test]).env(ROLE, &file).env("TMPDIR", folder.path()).stdout(Stdio::null());
    let mut victim = victim.spawn().unwrap();
    wait_until("the other test process starts its server", || file.exists());
    let server: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    assert!(is_running(server));
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_until("the server dies with its test process", || !is_running(server));
}
