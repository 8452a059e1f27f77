//! Over TLS: a proxy in front of a real gateway.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

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

/// Serves TLS on a free port, which it returns, and forwards all data to `to`.
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

/// A certificate as `openssl req -x509` makes it, which marks it as that of an authority; `None` without openssl.
fn made_by_openssl(dir: &Path, name: &str) -> Option<(PathBuf, TlsAcceptor)> {
    let (certificate, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-days",
            "2",
            "-addext",
        ])
        .arg(format!("subjectAltName=DNS:{name}"))
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    let Ok(made) = made else {
        thread_testkit::missing("openssl");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let chain = vec![CertificateDer::from_pem_file(&certificate).unwrap()];
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(chain, PrivateKeyDer::from_pem_file(&key).unwrap()).unwrap();
    Some((certificate, TlsAcceptor::from(Arc::new(config))))
}

/// A certificate like these that has expired.
fn expired(dir: &Path) -> (PathBuf, TlsAcceptor) {
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 2, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let file = dir.join("expired.pem");
    fs::write(&file, certificate.pem()).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    (file, TlsAcceptor::from(Arc::new(config)))
}

#[test]
fn a_named_certificate_is_trusted_as_it_stands_for_its_name_and_time() {
    let gateway = Gateway::start("cat");
    let Some((good, acceptor)) = made_by_openssl(gateway.home(), "localhost") else { return };
    let url_of = |acceptor| format!("https://localhost:{}", proxy(acceptor, gateway.listens_on().to_owned()));
    let chat = |url: &str, ca: &Path| {
        let said = gateway.chat(["hello", "--json", "--url", url, "--ca"]).arg(ca).output().unwrap();
        (said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned())
    };
    let refused = |(code, said): (Option<i32>, String)| {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(" is not trusted: ") && said.contains("\"code\":\"untrusted\""), "{said}");
    };
    let url = url_of(acceptor);
    assert_eq!(chat(&url, &good), (Some(0), String::new()));
    let (elsewhere, acceptor) = made_by_openssl(gateway.home(), "elsewhere").unwrap();
    refused(chat(&url, &elsewhere));
    refused(chat(&url_of(acceptor), &elsewhere));
    let (expired, acceptor) = expired(gateway.home());
    refused(chat(&url_of(acceptor), &expired));
}
