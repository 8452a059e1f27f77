//! TLS, according to `sslmode`: libpq encrypts without checking the certificate up to `require`.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thread::error::Code;
use thread::{Error, Result};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::problem;
use crate::settings::{Settings, SslMode};

/// What makes connections encrypted.
///
/// # Errors
///
/// A certificate or a key cannot be read.
pub fn connector(settings: &Settings) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| tls_failed(format!("TLS cannot be used: {e}"), "give sslmode=disable"))?;
    // As libpq does: if an authority is known, even `prefer` accepts only what it signed.
    let known = match settings.sslmode {
        SslMode::Allow | SslMode::Prefer | SslMode::Require if settings.sslrootcert.is_none() => None,
        _ => {
            let roots = Arc::new(roots(settings)?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
            Some(verifier.map_err(|e| tls_failed(format!("TLS cannot be used: {e}"), ROOTS))?)
        }
    };
    let verifier = Verifier { known, host: settings.sslmode == SslMode::VerifyFull, provider };
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let config = match (&settings.sslcert, &settings.sslkey) {
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, &e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| {
                tls_failed(
                    format!("the certificate of the client cannot be used: {e}"),
                    "check sslcert and sslkey",
                )
            })?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

const ROOTS: &str = "give sslrootcert, a file with the certificates of the authorities, or `system`";

fn roots(settings: &Settings) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let found = match settings.sslrootcert.as_deref() {
        None => {
            return Err(tls_failed(
                "no authority is known that could have signed the server's certificate",
                ROOTS,
            ));
        }
        Some("system") => rustls_native_certs::load_native_certs().certs,
        Some(file) => certificates(Path::new(file))?,
    };
    store.add_parsable_certificates(found);
    match store.is_empty() {
        true => Err(tls_failed("there is no certificate of an authority in sslrootcert", ROOTS)),
        false => Ok(store),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    read.map_err(|e| unreadable(file, &e))
}

fn unreadable(file: &Path, error: &dyn std::fmt::Display) -> Error {
    tls_failed(
        format!("cannot read {}: {error}", file.display()),
        "name a PEM file that exists, and may be read",
    )
}

fn tls_failed(what: impl Into<String>, advice: &str) -> Error {
    problem(Code::TlsFailed, what, advice)
}

/// Checks as much of a server's certificate as was asked for.
#[derive(Debug)]
struct Verifier {
    /// By the authorities; `None` accepts any.
    known: Option<Arc<WebPkiServerVerifier>>,
    /// Whether it must be that of the host.
    host: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(known) = &self.known else { return Ok(ServerCertVerified::assertion()) };
        match known.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // Everything else was checked before.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.host => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
