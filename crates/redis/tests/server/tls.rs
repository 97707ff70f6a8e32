//! Encrypted connections: who is trusted, and who has to show a certificate.

use std::fs;
use std::path::PathBuf;

use leasehold_core::ErrorKind;
use leasehold_testkit::ports::PortLease;
use leasehold_testkit::servers::{RedisServer, ServerKind};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::support::{Process, connect_error, name, owner, run};

/// An authority and what it signed, as files, and a server that uses them.
struct Secured {
    _server: RedisServer,
    port: PortLease,
    folder: PathBuf,
}

impl Secured {
    fn start(auth_clients: &str) -> Self {
        let port = PortLease::take().unwrap();
        let folder =
            std::env::temp_dir().join(format!("leasehold-tls-{}-{}", std::process::id(), port.port()));
        fs::create_dir_all(&folder).unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.distinguished_name.push(DnType::CommonName, "an authority for tests");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
        for (who, names) in [("server", vec!["localhost".to_owned()]), ("client", vec!["app".to_owned()])] {
            let key = KeyPair::generate().unwrap();
            let mut certificate = CertificateParams::new(names).unwrap();
            certificate.distinguished_name.push(DnType::CommonName, who);
            let certificate = certificate.signed_by(&key, &authority).unwrap();
            fs::write(folder.join(format!("{who}.pem")), certificate.pem()).unwrap();
            fs::write(folder.join(format!("{who}.key")), key.serialize_pem()).unwrap();
        }
        let file = |name: &str| folder.join(name).display().to_string();
        let server = RedisServer::builder(ServerKind::Redis7)
            .config("tls-port", &port.port().to_string())
            .config("tls-cert-file", &file("server.pem"))
            .config("tls-key-file", &file("server.key"))
            .config("tls-ca-cert-file", &file("ca.pem"))
            .config("tls-auth-clients", auth_clients)
            .start()
            .unwrap();
        Self { _server: server, port, folder }
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn url(&self, host: &str, parameters: &str) -> String {
        format!("rediss://{host}:{}/?{parameters}", self.port.port())
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_server_is_used_if_its_certificate_is_trusted_and_has_its_name() {
    let secured = Secured::start("no");
    run(async {
        let ca = format!("ca={}", secured.file("ca.pem"));
        let process = Process::start(&secured.url("localhost", &ca)).await;
        process.take(&name("job"), &owner("me")).await;
        // The system's authorities did not sign it; or it is another server's.
        for (url, word) in [
            (secured.url("localhost", ""), "ca="),
            (secured.url("127.0.0.1", &ca), "a name that its certificate has"),
        ] {
            let error = connect_error(&url).await;
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Config), "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
        let error = connect_error(&secured.url("localhost", "ca=/no/such/file")).await;
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("/no/such/file"), "{error}");
    });
}

#[test]
fn a_server_that_wants_a_certificate_gets_it() {
    let secured = Secured::start("yes");
    run(async {
        let ca = format!("ca={}", secured.file("ca.pem"));
        let with = format!("{ca}&cert={}&key={}", secured.file("client.pem"), secured.file("client.key"));
        let process = Process::start(&secured.url("localhost", &with)).await;
        process.take(&name("job"), &owner("me")).await;
        assert_eq!(connect_error(&secured.url("localhost", &ca)).await.kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn plain_text_to_a_port_for_tls_is_an_error_that_does_not_hang() {
    let secured = Secured::start("no");
    run(async {
        let error = connect_error(&format!("redis://localhost:{}/", secured.port.port())).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
}
