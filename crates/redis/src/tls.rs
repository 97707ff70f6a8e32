//! TLS on an open connection, with rustls. Certificates are read from files in PEM form.

use std::path::Path;
use std::sync::Arc;

use leasehold_core::{Error, ErrorKind};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::config::Tls;

/// Encrypts a connection after checking that the server is the one that was asked for.
///
/// # Errors
/// `Config` when a file cannot be used, `Unavailable` when the server is not trusted or speaks no TLS.
pub(crate) async fn wrap(stream: TcpStream, host: &str, tls: &Tls) -> Result<TlsStream<TcpStream>, Error> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Error::config(format!("{host:?} is no host name that a certificate could have")))?;
    let connector = TlsConnector::from(Arc::new(client_config(tls)?));
    connector.connect(name, stream).await.map_err(|source| {
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "no TLS connection to the server ({source}): is this its TLS port, and does ca=… name the authority \
                 that signed its certificate?"
            ),
        )
        .with_source(source)
    })
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
