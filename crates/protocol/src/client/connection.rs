//! One WebSocket, and what its failures mean.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config};

use super::Error;
use super::address::Address;
use crate::Close;

/// The gateway pings every 20 s: a peer that is silent for this long is gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Limit for connecting, for sending a frame, and for each frame while a response is awaited.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest frame that is accepted, in bytes: an answer of 16 MiB may have six times that as JSON.
const MAX_RECEIVED: usize = 128 * 1024 * 1024;

pub struct Connection {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// Whether `connect` has succeeded.
    pub is_admitted: bool,
}

impl Connection {
    pub async fn dial(address: &Address, tls: Connector) -> Result<Connection, Error> {
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MAX_RECEIVED))
            .max_frame_size(Some(MAX_RECEIVED));
        let dialing = connect_async_tls_with_config(address.to_string(), Some(limits), true, Some(tls));
        let dialed = timeout(RESPONSE_TIMEOUT, dialing).await.map_err(|_| silent())?;
        let (socket, _) = dialed.map_err(not_connected)?;
        Ok(Connection { socket, is_admitted: false })
    }

    pub async fn send(&mut self, text: &str) -> Result<(), Error> {
        let sent = timeout(RESPONSE_TIMEOUT, self.socket.send(Message::text(text))).await;
        sent.map_err(|_| silent())?.map_err(lost)
    }

    /// The text of the next frame. Cancel-safe.
    pub async fn receive(&mut self) -> Result<String, Error> {
        loop {
            let received = timeout(IDLE_TIMEOUT, self.socket.next()).await;
            let received =
                received.map_err(|_| Error::Lost("nothing was received for a minute".to_owned()))?;
            match received {
                None => return Err(Error::Lost("the connection ended".to_owned())),
                Some(Err(WsError::Capacity(e))) => return Err(Error::Oversized(e.to_string())),
                Some(Err(e)) => return Err(lost(e)),
                Some(Ok(Message::Text(text))) => return Ok(text.as_str().to_owned()),
                Some(Ok(Message::Close(close))) => return Err(self.closed(close)),
                Some(Ok(_)) => {}
            }
        }
    }

    /// Once `connect` has succeeded, a closed connection is worth a reconnect, unless a frame was too large:
    /// it would be sent again.
    fn closed(&self, close: Option<CloseFrame>) -> Error {
        match close {
            Some(close) if !self.is_admitted || u16::from(close.code) == Close::FrameTooBig.code() => {
                Error::Closed { code: close.code.into(), reason: close.reason.to_string() }
            }
            Some(close) if !close.reason.is_empty() => Error::Lost(close.reason.to_string()),
            _ => Error::Lost("the gateway ended the connection".to_owned()),
        }
    }
}

pub fn silent() -> Error {
    Error::Lost("no answer within 30 s".to_owned())
}

fn lost(error: WsError) -> Error {
    Error::Lost(error.to_string())
}

/// Why a connection could not be made: the kind of failure decides whether a retry may help.
fn not_connected(error: WsError) -> Error {
    match error {
        WsError::Http(response) => match response.status() {
            status if status.is_server_error() => Error::Lost(format!("it answered {status}")),
            StatusCode::FORBIDDEN => Error::Forbidden,
            status => Error::NotAGateway(format!("it answered {status}")),
        },
        // The connection ended during the handshake.
        WsError::Protocol(ProtocolError::HandshakeIncomplete) => lost(error),
        WsError::Protocol(e) => Error::NotAGateway(e.to_string()),
        WsError::Io(e) => match e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(why)) => Error::Untrusted(why.to_string()),
            Some(e) => Error::NotAGateway(e.to_string()),
            None => Error::Lost(e.to_string()),
        },
        error => lost(error),
    }
}

/// Trusts the system's authorities, and those in a file.
///
/// # Errors
///
/// The file has none, or there are none at all.
pub fn trusting(ca: Option<&Path>) -> Result<Connector, Error> {
    let mut roots = RootCertStore::empty();
    let mut named = Vec::new();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca {
        let unusable = |why: String| Error::Ca { path: path.to_owned(), why };
        let text = fs::read(path).map_err(|e| unusable(e.to_string()))?;
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|e| unusable(e.to_string()))?;
            roots.add(certificate.clone()).map_err(|e| unusable(e.to_string()))?;
            named.push(certificate);
        }
        if named.is_empty() {
            return Err(unusable("it has no certificate in the PEM format".to_owned()));
        }
    }
    if roots.is_empty() {
        return Err(Error::Untrusted("no certificates of authorities are installed".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |e: &dyn std::fmt::Display| Error::Untrusted(e.to_string());
    let by_authority = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let by_authority = by_authority.build().map_err(|e| unusable(&e))?;
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|e| unusable(&e))?.dangerous();
    let config = config.with_custom_certificate_verifier(Arc::new(Verifier { by_authority, named }));
    Ok(Connector::Rustls(Arc::new(config.with_no_client_auth())))
}

/// Accepts certificates signed by an authority, and exactly those that were named. One that `openssl req
/// -x509` makes is marked as an authority's, and so cannot be a server's by the rules for chains.
#[derive(Debug)]
struct Verifier {
    by_authority: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
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
        match self.by_authority.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // Only the chain is wrong: when it is valid was checked before that, and its name is checked after it.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::Other(_),
            )) if self.named.iter().any(|named| named == certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}
