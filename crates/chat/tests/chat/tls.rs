//! Over TLS: a proxy in front of a real gateway.

use std::fs;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::harness::Gateway;

/// A certificate for `localhost`, in the PEM format, that certifies itself.
fn certified() -> (String, TlsAcceptor) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![cert.der().clone()], key).unwrap();
    (cert.pem(), TlsAcceptor::from(Arc::new(config)))
}

/// Serves TLS on a port of its own, which it returns, and passes everything on.
fn proxy(acceptor: TlsAcceptor, to: String) -> u16 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    // Ends with the test program.
    std::thread::spawn(move || {
        runtime.block_on(async {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, to) = (acceptor.clone(), to.clone());
                tokio::spawn(async move {
                    // A client that does not trust it ends the connection.
                    let mut client = acceptor.accept(socket).await?;
                    let mut gateway = TcpStream::connect(to).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut gateway).await
                });
            }
        });
    });
    port
}

#[test]
fn a_gateway_behind_tls_is_reached_if_its_certificate_is_trusted() {
    let gateway = Gateway::start("cat");
    let (certificate, acceptor) = certified();
    let port = proxy(acceptor, gateway.listens_on().to_owned());
    let file = gateway.home().join("ca.pem");
    fs::write(&file, certificate).unwrap();
    let url = format!("https://localhost:{port}");
    let said = gateway.chat(["hello", "--url", &url, "--ca"]).arg(&file).output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!((String::from_utf8_lossy(&said.stdout).as_ref(), errors.as_str()), ("hello\n", ""));

    for (args, error) in [
        (vec!["hello", "--url", &url], "is not trusted: "),
        (vec!["hello", "--url", &url, "--ca", "/dev/null"], "cannot read certificates from /dev/null: "),
    ] {
        let said = gateway.chat(args).output().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(1), "{errors}");
        assert!(errors.contains(error) && errors.contains("--ca"), "{errors}");
    }
}
