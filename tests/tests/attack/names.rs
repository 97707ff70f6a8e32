//! A server behind a name that gets another address: every new connection asks for the address again.
//!
//! The worker runs in a mount namespace with a hosts file of its own, which the test changes while it works.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::RedisServer;

use crate::support::{SLACK, on_each_server};

const NAME: &str = "locks.example";
/// Connecting again, with pauses of up to two seconds.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_name_is_resolved_again_for_every_new_connection() {
    if !can_have_own_hosts_file() {
        eprintln!("SKIPPED a_name_is_resolved_again: this machine allows no mount namespace to its users");
        return;
    }
    on_each_server("a_name_is_resolved_again", |server| {
        let folder = tempfile::tempdir().unwrap();
        let hosts = folder.path().join("hosts");
        let point_to = |address: &str| std::fs::write(&hosts, format!("{address} {NAME}\n")).unwrap();
        point_to("127.0.0.1");
        let proxy = Proxy::before(server).unwrap();
        let next = RedisServer::start(server.kind()).unwrap();
        let elsewhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), proxy.port());
        forward(elsewhere, next.address());

        let url = format!("redis://{NAME}:{}/", proxy.port());
        let mut worker = Worker::start(&hosts, &url, folder.path());
        worker.next_section();
        let sections = || next.command_stats().unwrap().get("evalsha").map_or(0, |stats| stats.calls);
        assert_eq!(sections(), 0);
        point_to("127.0.0.2");
        // The old server stays up: nobody may go back to it.
        proxy.cut();
        while worker.sections.try_recv().is_ok() {}
        for _ in 0..20 {
            worker.next_section();
        }
        assert!(sections() > 20, "{} calls at the new address", sections());
        worker.finish();
    });
}

/// A worker of the cross-process tests that sees its own hosts file.
struct Worker {
    child: Child,
    sections: Receiver<String>,
}

impl Worker {
    fn start(hosts: &std::path::Path, url: &str, folder: &std::path::Path) -> Self {
        let script = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;
        let mut child = unshare()
            .args(["sh", "-c", script, "sh"])
            .arg(hosts)
            .args([env!("CARGO_BIN_EXE_leasehold-tests"), url])
            .arg(folder)
            .args(["0", "5000", "plain", "0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, sections) = channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, sections }
    }

    fn next_section(&self) {
        self.sections.recv_timeout(PATIENCE).unwrap();
    }

    fn finish(&mut self) {
        drop(self.child.stdin.take());
        let ends = std::time::Instant::now() + PATIENCE + SLACK;
        while self.child.try_wait().unwrap().is_none() {
            assert!(std::time::Instant::now() < ends, "the worker does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]);
    command
}

fn can_have_own_hosts_file() -> bool {
    let script = "mount --bind /etc/hosts /etc/hosts";
    unshare().args(["sh", "-c", script]).output().is_ok_and(|output| output.status.success())
}

/// Passes connections on, for as long as the test runs.
fn forward(from: SocketAddr, to: SocketAddr) {
    let listener = TcpListener::bind(from).unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (mut near, mut far) = (near.unwrap(), TcpStream::connect(to).unwrap());
            let (mut back, mut forth) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut near, &mut far);
                let _ = far.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut forth);
                let _ = forth.shutdown(std::net::Shutdown::Both);
            });
        }
    });
}
