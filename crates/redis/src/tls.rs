//! TLS on an open connection, with rustls. Certificates are read from files in PEM form.

use std::io::ErrorKind as ErrorKindOfIo;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error as TlsError, RootCertStore, crypto};

use crate::config::Tls;

/// A server that speaks no TLS may wait for the rest of what it takes for a command, so it is told apart from one
/// that is slow by this. Shorter than connecting may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// Encrypts a connection after checking that the server is the one that was asked for.
///
/// # Errors
/// `Config` when a file cannot be used, `Unavailable` when the server is not trusted or speaks no TLS.
pub(crate) async fn wrap(stream: TcpStream, host: &str, tls: &Tls) -> Result<TlsStream<TcpStream>, Error> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Error::config(format!("{host:?} is no host name that a certificate could have")))?;
    let connector = TlsConnector::from(Arc::new(client_config(tls)?));
    let greeted = tokio::time::timeout(HANDSHAKE_TIMEOUT, connector.connect(name, stream)).await;
    greeted.unwrap_or_else(|_| Err(ErrorKindOfIo::TimedOut.into())).map_err(|source| {
        let advice = advice(&source);
        Error::new(ErrorKind::Unavailable, format!("no TLS connection to the server ({source}): {advice}"))
            .with_source(source)
    })
}

/// What to look at when the two ends do not get on.
fn advice(error: &std::io::Error) -> &'static str {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) else {
        return "is this its TLS port?";
    };
    match error {
        TlsError::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has to be renewed, or this machine's clock is wrong"
        }
        TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "connect by a name that its certificate has",
        TlsError::InvalidCertificate(_) => "does ca=… name the authority that signed its certificate?",
        TlsError::InvalidMessage(_) => "it speaks no TLS there: is this its TLS port?",
        TlsError::AlertReceived(_) => {
            "it refuses what this client offers: are cert=… and key=… those it wants?"
        }
        _ => "is this its TLS port?",
    }
}

fn client_config(tls: &Tls) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|source| Error::config("TLS cannot be set up").with_source(source))?
        .with_root_certificates(roots(tls.ca.as_deref())?);
    let (Some(cert), Some(key)) = (&tls.cert, &tls.key) else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(cert)?;
    let key_of = PrivateKeyDer::from_pem_file(key)
        .map_err(|source| unusable(key, "a private key").with_source(source))?;
    builder
        .with_client_auth_cert(chain, key_of)
        .map_err(|source| unusable(key, "the private key of that certificate").with_source(source))
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = ca {
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|source| unusable(ca, "an authority").with_source(source))?;
        }
        return Ok(roots);
    }
    let system = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(system.certs);
    if roots.is_empty() {
        return Err(Error::config("this system has no root certificates: name a file of them with ca=…"));
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(unusable(file, "a certificate")),
        Err(source) => Err(unusable(file, "a certificate").with_source(source)),
    }
}

fn unusable(file: &Path, what: &str) -> Error {
    Error::config(format!("the file {} cannot be used as {what} in PEM form", file.display()))
}
