//! Encrypted connections: whom a client trusts, what it shows of itself, and what it says when the two ends do not
//! fit.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind, LeaseState};
use leasehold_testkit::ports::PortLease;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{RedisServer, ServerKind};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

use crate::outages::renews;
use crate::support::{SLACK, connect, free, run, take, until_queued, until_within, wait_for};

const TTL: Duration = Duration::from_secs(10);
const STORE_TIMEOUT: Duration = Duration::from_secs(4);

/// Two authorities, one of them trusted, and certificates of each, as files.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        for authority in ["ca", "stranger"] {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name.push(DnType::CommonName, authority);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            files.write(&format!("{authority}.pem"), &issuer.pem());
            for (who, name, last_year) in [
                ("server", "localhost", 2100),
                ("elsewhere", "redis.example", 2100),
                ("expired", "localhost", 2020),
                ("client", "app", 2100),
                ("former", "app", 2020),
            ] {
                let key = KeyPair::generate().unwrap();
                let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
                params.not_before = date_time_ymd(2019, 1, 1);
                params.not_after = date_time_ymd(last_year, 1, 1);
                params.distinguished_name.push(DnType::CommonName, who);
                let certificate = params.signed_by(&key, &issuer).unwrap();
                files.write(&format!("{authority}-{who}.pem"), &certificate.pem());
                files.write(&format!("{authority}-{who}.key"), &key.serialize_pem());
            }
        }
        files
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The parameters of a URL.
    fn trusting(&self) -> String {
        format!("ca={}", self.shown("ca.pem"))
    }

    fn showing(&self, who: &str) -> String {
        let (cert, key) = (self.shown(&format!("{who}.pem")), self.shown(&format!("{who}.key")));
        format!("{}&cert={cert}&key={key}", self.trusting())
    }
}

/// A server that has this certificate.
struct Secured {
    server: RedisServer,
    port: PortLease,
}

impl Secured {
    fn start(kind: ServerKind, files: &Files, certificate: &str, auth_clients: &str) -> Option<Self> {
        let port = PortLease::take().unwrap();
        let server = RedisServer::builder(kind)
            .config("tls-port", &port.port().to_string())
            .config("tls-cert-file", &files.shown(&format!("{certificate}.pem")))
            .config("tls-key-file", &files.shown(&format!("{certificate}.key")))
            .config("tls-ca-cert-file", &files.shown("ca.pem"))
            .config("tls-auth-clients", auth_clients)
            .start();
        match server {
            Ok(server) => Some(Self { server, port }),
            // Built without it.
            Err(_) if kind != ServerKind::default() => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn url(&self, parameters: &str) -> String {
        format!("rediss://localhost:{}/?{parameters}", self.port.port())
    }
}

/// What is said about a server that cannot be used, and that it is said in time.
async fn refusal(url: &str, words: &[&str]) {
    let started = Instant::now();
    let error = Client::builder().store_timeout(STORE_TIMEOUT).connect(url).await.unwrap_err();
    let (took, text) = (started.elapsed(), error.to_string());
    println!("after {took:?}: {text}");
    assert!([ErrorKind::Unavailable, ErrorKind::Config].contains(&error.kind()), "{error}");
    assert!(took < STORE_TIMEOUT + SLACK, "{took:?}");
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}

#[test]
fn leases_waiters_and_reconnects_work_over_tls() {
    let files = Files::new();
    for kind in ServerKind::ALL {
        let Some(secured) = Secured::start(kind, &files, "ca-server", "yes") else {
            println!("{kind} has no TLS");
            continue;
        };
        run(async {
            let url = secured.url(&files.showing("ca-client"));
            let (client, other) = (connect(&url, "a").await, connect(&url, "b").await);
            let held = take(&client, "job", TTL).await;
            let waiting = wait_for(&other, "job", TTL);
            until_queued(&secured.server, "job", 1).await;
            assert_eq!(client.list("", 10).await.unwrap().entries.len(), 1);
            secured.server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
            renews(&held).await;
            free(held).await;
            free(tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap()).await;
        });
    }
}

#[test]
fn a_server_that_is_not_to_be_trusted_is_refused_and_the_reason_named() {
    let files = Files::new();
    let start = |certificate| Secured::start(ServerKind::default(), &files, certificate, "no").unwrap();
    let (good, elsewhere, expired, stranger) =
        (start("ca-server"), start("ca-elsewhere"), start("ca-expired"), start("stranger-server"));
    run(async {
        let trusting = files.trusting();
        let wrong_host = elsewhere.url(&trusting);
        let by_address = good.url(&trusting).replace("localhost", "127.0.0.1");
        let (expired, unknown) = (expired.url(&trusting), stranger.url(&trusting));
        let system = good.url("");
        let missing_file = good.url("ca=/no/such/file");
        let no_certificate = good.url(&format!("ca={}", files.shown("ca-server.key")));
        let other_key = good.url(&files.showing("ca-client").replace("ca-client.key", "ca-server.key"));
        tokio::join!(
            refusal(&wrong_host, &["localhost", "redis.example", "name"]),
            refusal(&by_address, &["127.0.0.1", "name"]),
            refusal(&expired, &["expired"]),
            refusal(&unknown, &["ca="]),
            refusal(&system, &["ca="]),
            refusal(&missing_file, &["/no/such/file"]),
            refusal(&no_certificate, &["ca-server.key", "PEM"]),
            refusal(&other_key, &["ca-server.key"]),
        );
        free(take(&connect(&good.url(&trusting), "a").await, "job", TTL).await).await;
    });
}

#[test]
fn a_client_that_is_not_let_in_is_told_that_it_is_about_its_certificate() {
    let files = Files::new();
    let secured = Secured::start(ServerKind::default(), &files, "ca-server", "yes").unwrap();
    run(async {
        let (none, former) = (secured.url(&files.trusting()), secured.url(&files.showing("ca-former")));
        let stranger = secured.url(&files.showing("stranger-client"));
        tokio::join!(
            refusal(&none, &["certificate"]),
            refusal(&former, &["certificate"]),
            refusal(&stranger, &["certificate"]),
        );
        free(take(&connect(&secured.url(&files.showing("ca-client")), "a").await, "job", TTL).await).await;
    });
}

#[test]
fn tls_to_what_speaks_none_and_plain_text_to_what_speaks_tls_are_told_in_time() {
    let files = Files::new();
    let secured = Secured::start(ServerKind::default(), &files, "ca-server", "no").unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let talks = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = talks.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in talks.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    });
    run(async {
        let with = |port| format!("rediss://localhost:{port}/?{}", files.trusting());
        let plain_server = with(secured.server.port());
        let silent_server = with(silent.local_addr().unwrap().port());
        let another_server = with(address.port());
        let plain_url = format!("redis://localhost:{}/", secured.port.port());
        let (plain_http, options) =
            (format!("redis://localhost:{}/", address.port()), format!("{plain_url}?{}", files.trusting()));
        tokio::join!(
            refusal(&plain_server, &["TLS"]),
            refusal(&silent_server, &["TLS"]),
            refusal(&another_server, &["TLS"]),
            refusal(&plain_url, &["rediss://"]),
            refusal(&plain_http, &["Redis"]),
            refusal(&options, &["rediss://"]),
        );
    });
}

#[test]
fn a_lease_over_tls_survives_a_short_outage_with_certificates_that_were_renewed() {
    let files = Files::new();
    let secured = Secured::start(ServerKind::default(), &files, "ca-server", "yes").unwrap();
    let proxy = Proxy::start_opaque(secured.port.address()).unwrap();
    run(async {
        for end in ["pem", "key"] {
            fs::copy(files.path(&format!("ca-client.{end}")), files.path(&format!("mine.{end}"))).unwrap();
        }
        let url = format!("rediss://localhost:{}/?{}", proxy.port(), files.showing("mine"));
        let client = connect(&url, "a").await;
        let held = take(&client, "job", TTL).await;
        // As tools that renew certificates do: other files under the same name.
        for end in ["pem", "key"] {
            fs::copy(files.path(&format!("ca-server.{end}")), files.path(&format!("mine.{end}"))).unwrap();
        }
        for _ in 0..2 {
            proxy.cut();
            until_within(SLACK, "in doubt or held", || proxy.stats().connections_open > 0).await;
            until_within(SLACK * 2, "held", || held.state() == LeaseState::Held).await;
        }
        renews(&held).await;
        proxy.half_open();
        tokio::time::sleep(Duration::from_secs(3)).await;
        proxy.heal();
        until_within(TTL, "held again", || held.remaining() > TTL / 2).await;
        free(held).await;
    });
}
