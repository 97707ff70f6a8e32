//! The proxy's faults in front of real servers of every kind.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use leasehold_testkit::proxy::{AfterDrop, Proxy, RequestMatch};
use leasehold_testkit::resp::{Connection, RespValue};
use leasehold_testkit::servers::{RedisServer, for_each_server};

const LONG: Duration = Duration::from_secs(10);
/// How long nothing must happen for a test to believe that nothing will.
const QUIET: Duration = Duration::from_millis(150);

fn through(test: &str, mut body: impl FnMut(&RedisServer, &Proxy)) {
    for_each_server(test, |server| match Proxy::before(server) {
        Ok(proxy) => body(server, &proxy),
        Err(error) => panic!("{test}: no proxy: {error}"),
    });
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_silent(connection: &mut Connection) -> bool {
    connection.read(QUIET).is_err_and(|error| error.kind() == ErrorKind::TimedOut)
}

fn is_closed(connection: &mut Connection) -> bool {
    let closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    connection.read(LONG).is_err_and(|error| closed.contains(&error.kind()))
}

fn simple(text: &str) -> RespValue {
    RespValue::Simple(text.into())
}

fn message(payload: &str) -> RespValue {
    RespValue::Push(["message", "c", payload].iter().map(|part| RespValue::Bulk((*part).into())).collect())
}

#[test]
fn without_faults_everything_passes_unchanged() {
    through("without_faults_everything_passes_unchanged", |_, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        client.command(&["HELLO", "3"]).unwrap();
        let large = vec![b'\n'; 3_000_000];
        assert_eq!(client.command(&[&b"SET"[..], b"k", &large]).unwrap(), simple("OK"));
        assert_eq!(client.command(&["GET", "k"]).unwrap(), RespValue::Bulk(large));
        for _ in 0..1_000 {
            client.send(&["INCR", "n"]).unwrap();
        }
        for number in 1..=1_000 {
            assert_eq!(client.read(LONG).unwrap(), RespValue::Integer(number));
        }
        let stats = proxy.stats();
        assert_eq!((stats.requests, stats.replies, stats.commands["INCR"]), (1_003, 1_003, 1_000));
        assert!(stats.bytes_to_server > 3_000_000 && stats.bytes_to_client > 3_000_000);
        assert_eq!((stats.connections_accepted, stats.connections_open), (1, 1));
        drop(client);
        wait_until("the connection is forgotten", || proxy.stats().connections_open == 0);
    });
}

#[test]
fn a_delay_applies_to_each_direction_but_not_to_each_frame() {
    through("a_delay_applies_to_each_direction_but_not_to_each_frame", |_, proxy| {
        let delay = Duration::from_millis(20);
        proxy.set_delay(delay, delay);
        let mut client = Connection::open(proxy.address()).unwrap();
        let start = Instant::now();
        client.command(&["PING"]).unwrap();
        assert!(start.elapsed() >= 2 * delay, "{:?}", start.elapsed());
        let start = Instant::now();
        for _ in 0..1_000 {
            client.send(&["PING"]).unwrap();
        }
        for _ in 0..1_000 {
            assert_eq!(client.read(LONG).unwrap(), simple("PONG"));
        }
        // One after the other they would take 40 s.
        assert!(start.elapsed() >= 2 * delay && start.elapsed() < LONG, "{:?}", start.elapsed());
        proxy.set_delay(Duration::ZERO, delay);
        let start = Instant::now();
        client.command(&["PING"]).unwrap();
        assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
    });
}

#[test]
fn a_lost_reply_leaves_an_executed_request_and_a_broken_connection() {
    through("a_lost_reply_leaves_an_executed_request_and_a_broken_connection", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        let lost = proxy.drop_next_reply(AfterDrop::Cut);
        assert!(!lost.has_fired());
        client.send(&["SET", "k", "v"]).unwrap();
        lost.wait(LONG).unwrap();
        assert!(is_closed(&mut client));
        assert_eq!(server.cli(&["GET", "k"]).unwrap(), "v");
        let mut next = Connection::open(proxy.address()).unwrap();
        assert_eq!(next.command(&["PING"]).unwrap(), simple("PONG"));
    });
}

#[test]
fn the_reply_to_one_command_is_lost_and_replies_before_it_arrive() {
    through("the_reply_to_one_command_is_lost_and_replies_before_it_arrive", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        let lost = proxy.drop_reply_to(RequestMatch::command("incr").containing("mine"), AfterDrop::Silence);
        let mut other = Connection::open(proxy.address()).unwrap();
        assert_eq!(other.command(&["INCR", "theirs"]).unwrap(), RespValue::Integer(1));
        client.send(&["PING"]).unwrap();
        client.send(&["INCR", "mine"]).unwrap();
        assert_eq!(client.read(LONG).unwrap(), simple("PONG"));
        lost.wait(LONG).unwrap();
        assert!(is_silent(&mut client));
        client.send(&["INCR", "mine"]).unwrap();
        assert!(is_silent(&mut client));
        assert_eq!(server.cli(&["GET", "mine"]).unwrap(), "1");
        assert_eq!(other.command(&["INCR", "mine"]).unwrap(), RespValue::Integer(2));
    });
}

#[test]
fn exactly_one_reply_is_lost_when_the_rest_is_to_pass() {
    through("exactly_one_reply_is_lost_when_the_rest_is_to_pass", |_, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        let lost = proxy.drop_reply_to("INCR", AfterDrop::Continue);
        client.send(&["INCR", "k"]).unwrap();
        lost.wait(LONG).unwrap();
        assert!(is_silent(&mut client));
        assert_eq!(client.command(&["INCR", "k"]).unwrap(), RespValue::Integer(2));
    });
}

#[test]
fn a_push_is_not_taken_for_a_reply_nor_a_reply_for_a_push() {
    through("a_push_is_not_taken_for_a_reply_nor_a_reply_for_a_push", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        client.command(&["HELLO", "3"]).unwrap();
        let push = proxy.drop_next_push();
        client.send(&["SUBSCRIBE", "c"]).unwrap();
        // The confirmation is a push in RESP3, but no message.
        assert!(matches!(client.read(LONG).unwrap(), RespValue::Push(_)));
        assert_eq!(client.command(&["PING"]).unwrap(), simple("PONG"));
        assert!(!push.has_fired());
        assert_eq!(server.cli(&["PUBLISH", "c", "lost"]).unwrap(), "1");
        push.wait(LONG).unwrap();
        let reply = proxy.drop_next_reply(AfterDrop::Continue);
        server.cli(&["PUBLISH", "c", "arrives"]).unwrap();
        assert_eq!(client.read(LONG).unwrap(), message("arrives"));
        assert!(!reply.has_fired());
        client.send(&["PING"]).unwrap();
        reply.wait(LONG).unwrap();
        assert!(is_silent(&mut client));
        assert_eq!(client.command(&["ECHO", "still there"]).unwrap(), RespValue::Bulk("still there".into()));
    });
}

#[test]
fn a_message_that_comes_with_the_publishers_own_reply_does_not_shift_it() {
    through("a_message_that_comes_with_the_publishers_own_reply_does_not_shift_it", |_, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        client.command(&["HELLO", "3"]).unwrap();
        client.send(&["SUBSCRIBE", "c"]).unwrap();
        client.read(LONG).unwrap();
        let lost = proxy.drop_reply_to("PUBLISH", AfterDrop::Continue);
        client.send(&["PUBLISH", "c", "m"]).unwrap();
        client.send(&["PING"]).unwrap();
        let seen = [client.read(LONG).unwrap(), client.read(LONG).unwrap()];
        assert_eq!(seen, [message("m"), simple("PONG")]);
        assert!(lost.has_fired());
    });
}

#[test]
fn the_confirmation_of_a_subscription_can_be_lost() {
    through("the_confirmation_of_a_subscription_can_be_lost", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        client.command(&["HELLO", "3"]).unwrap();
        let lost = proxy.drop_reply_to("SSUBSCRIBE", AfterDrop::Continue);
        client.send(&["SSUBSCRIBE", "c"]).unwrap();
        lost.wait(LONG).unwrap();
        assert!(is_silent(&mut client));
        let count = server.command(&["PUBSUB", "SHARDNUMSUB", "c"]).unwrap();
        assert_eq!(count.items().unwrap()[1], RespValue::Integer(1));
        assert_eq!(client.command(&["PING"]).unwrap(), simple("PONG"));
    });
}

#[test]
fn a_held_request_arrives_after_its_client_has_gone() {
    through("a_held_request_arrives_after_its_client_has_gone", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        let held = proxy.hold_next_request(RequestMatch::any().containing("late"));
        client.command(&["SET", "k", "before"]).unwrap();
        assert!(!held.is_held());
        client.send(&["SET", "k", "late"]).unwrap();
        held.wait(LONG).unwrap();
        assert!(is_silent(&mut client));
        drop(client);
        let mut other = Connection::open(proxy.address()).unwrap();
        assert_eq!(other.command(&["GET", "k"]).unwrap(), RespValue::Bulk("before".into()));
        proxy.cut();
        std::thread::sleep(QUIET);
        assert_eq!(server.cli(&["GET", "k"]).unwrap(), "before");
        held.deliver(LONG).unwrap();
        wait_until("the late request arrives", || {
            server.cli(&["GET", "k"]).is_ok_and(|value| value == "late")
        });
    });
}

#[test]
fn a_held_request_goes_on_when_its_handle_is_dropped() {
    through("a_held_request_goes_on_when_its_handle_is_dropped", |_, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        let held = proxy.hold_next_request("INCR");
        client.send(&["INCR", "k"]).unwrap();
        client.send(&["PING"]).unwrap();
        held.wait(LONG).unwrap();
        assert!(is_silent(&mut client));
        drop(held);
        assert_eq!(client.read(LONG).unwrap(), RespValue::Integer(1));
        assert_eq!(client.read(LONG).unwrap(), simple("PONG"));
        drop(proxy.hold_next_request("INCR"));
        let next = proxy.hold_next_request("INCR");
        client.send(&["INCR", "k"]).unwrap();
        next.wait(LONG).unwrap();
        assert!(is_silent(&mut client));
    });
}

#[test]
fn a_held_request_that_cannot_arrive_any_more_is_an_error() {
    through("a_held_request_that_cannot_arrive_any_more_is_an_error", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        let held = proxy.hold_next_request("PING");
        client.send(&["PING"]).unwrap();
        held.wait(LONG).unwrap();
        server.kill().unwrap();
        assert!(is_closed(&mut client));
        assert_eq!(held.deliver(LONG).unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert!(proxy.hold_next_request("PING").deliver(LONG).is_err());
    });
}

#[test]
fn a_duplicated_request_is_executed_twice_and_answered_once() {
    through("a_duplicated_request_is_executed_twice_and_answered_once", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        let twice = proxy.duplicate_next_request("INCR");
        assert_eq!(client.command(&["INCR", "k"]).unwrap(), RespValue::Integer(1));
        assert_eq!(client.command(&["PING"]).unwrap(), simple("PONG"));
        assert!(twice.has_fired());
        assert_eq!(server.cli(&["GET", "k"]).unwrap(), "2");
    });
}

#[test]
fn half_open_lets_nothing_through_not_even_the_end() {
    through("half_open_lets_nothing_through_not_even_the_end", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        client.command(&["HELLO", "3"]).unwrap();
        client.send(&["SUBSCRIBE", "c"]).unwrap();
        client.read(LONG).unwrap();
        proxy.half_open();
        client.send(&["SET", "k", "v"]).unwrap();
        server.cli(&["PUBLISH", "c", "m"]).unwrap();
        assert!(is_silent(&mut client));
        assert_eq!(server.cli(&["GET", "k"]).unwrap(), "");
        drop(client);
        let mut late = Connection::open(proxy.address()).unwrap();
        late.send(&["PING"]).unwrap();
        assert!(is_silent(&mut late));
        let stats = proxy.stats();
        assert_eq!((stats.connections_accepted, stats.connections_open), (2, 1));
        // The server still believes in its subscriber.
        assert_eq!(server.cli(&["PUBLISH", "c", "m"]).unwrap(), "1");
        proxy.heal();
        assert!(is_silent(&mut late));
        let mut new = Connection::open(proxy.address()).unwrap();
        assert_eq!(new.command(&["PING"]).unwrap(), simple("PONG"));
        proxy.cut();
        assert!(is_closed(&mut late));
        wait_until("the server learns of the end", || {
            server.cli(&["PUBLISH", "c", "m"]).is_ok_and(|receivers| receivers == "0")
        });
    });
}

#[test]
fn what_was_stalled_arrives_in_order_afterwards() {
    through("what_was_stalled_arrives_in_order_afterwards", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        proxy.stall();
        client.send(&["INCR", "k"]).unwrap();
        client.send(&["PING"]).unwrap();
        let mut late = Connection::open(proxy.address()).unwrap();
        late.send(&["PING"]).unwrap();
        assert!(is_silent(&mut client) && is_silent(&mut late));
        assert_eq!(server.cli(&["GET", "k"]).unwrap(), "");
        proxy.resume();
        assert_eq!(client.read(LONG).unwrap(), RespValue::Integer(1));
        assert_eq!(client.read(LONG).unwrap(), simple("PONG"));
        assert_eq!(late.read(LONG).unwrap(), simple("PONG"));
    });
}

#[test]
fn a_cut_closes_connections_but_what_is_on_its_way_arrives() {
    through("a_cut_closes_connections_but_what_is_on_its_way_arrives", |server, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        client.command(&["PING"]).unwrap();
        proxy.set_delay(QUIET, Duration::ZERO);
        client.send(&["SET", "k", "v"]).unwrap();
        wait_until("the request is on its way", || proxy.stats().commands.contains_key("SET"));
        proxy.cut();
        assert!(is_closed(&mut client));
        wait_until("the request arrives", || server.cli(&["GET", "k"]).is_ok_and(|value| value == "v"));
    });
}

#[test]
fn new_connections_are_refused_while_open_ones_stay() {
    through("new_connections_are_refused_while_open_ones_stay", |_, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        client.command(&["PING"]).unwrap();
        for _ in 0..3 {
            proxy.refuse().unwrap();
            let refused = Connection::open(proxy.address()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            assert_eq!(client.command(&["PING"]).unwrap(), simple("PONG"));
            proxy.accept().unwrap();
            let mut new = Connection::open(proxy.address()).unwrap();
            assert_eq!(new.command(&["PING"]).unwrap(), simple("PONG"));
        }
    });
}

#[test]
fn a_client_learns_that_the_server_died_and_can_be_led_to_another() {
    through("a_client_learns_that_the_server_died_and_can_be_led_to_another", |server, proxy| {
        let other = RedisServer::start(server.kind()).unwrap();
        other.cli(&["SET", "who", "other"]).unwrap();
        let mut client = Connection::open(proxy.address()).unwrap();
        client.command(&["PING"]).unwrap();
        server.kill().unwrap();
        assert!(is_closed(&mut client));
        assert!(is_closed(&mut Connection::open(proxy.address()).unwrap()));
        proxy.set_upstream(other.address());
        let mut client = Connection::open(proxy.address()).unwrap();
        assert_eq!(client.command(&["GET", "who"]).unwrap(), RespValue::Bulk("other".into()));
    });
}

#[test]
fn a_fault_that_does_not_happen_is_an_error() {
    through("a_fault_that_does_not_happen_is_an_error", |_, proxy| {
        let mut client = Connection::open(proxy.address()).unwrap();
        let fault = proxy.drop_reply_to("EVALSHA", AfterDrop::Cut);
        client.command(&["PING"]).unwrap();
        assert_eq!(fault.wait(QUIET).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn dropping_the_proxy_closes_its_connections_and_its_port() {
    for_each_server("dropping_the_proxy_closes_its_connections_and_its_port", |server| {
        let proxy = Proxy::before(server).unwrap();
        let mut clients: Vec<_> = (0..3).map(|_| Connection::open(proxy.address()).unwrap()).collect();
        clients[0].command(&["PING"]).unwrap();
        let held = proxy.hold_next_request("INCR");
        clients[1].send(&["INCR", "k"]).unwrap();
        held.wait(LONG).unwrap();
        let address = proxy.address();
        drop(proxy);
        assert!(clients.iter_mut().all(is_closed));
        assert!(Connection::open(address).is_err());
        assert!(held.deliver(LONG).is_err());
        assert_eq!(server.cli(&["GET", "k"]).unwrap(), "");
        assert!(server.url_through(&Proxy::before(server).unwrap()).starts_with("redis://127.0.0.1:"));
    });
}

#[test]
fn another_protocol_passes_an_opaque_proxy() {
    let echo = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start_opaque(echo.local_addr().unwrap()).unwrap();
    let server = std::thread::spawn(move || -> io::Result<()> {
        let (mut socket, _) = echo.accept()?;
        let mut bytes = [0; 5];
        socket.read_exact(&mut bytes)?;
        socket.write_all(&bytes)
    });
    let mut client = TcpStream::connect(proxy.address()).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client.write_all(b"\x00\x01*2\n").unwrap();
    let mut bytes = [0; 5];
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"\x00\x01*2\n");
    server.join().unwrap().unwrap();
}
