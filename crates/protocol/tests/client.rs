//! The client against a gateway whose frames are all written by the test.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use thread_protocol::client::{Address, Client, Error, MAX_SENDS, Received, Settings};
use thread_protocol::event::{self, ErrorCode, Event, Title};
use thread_protocol::method::*;
use thread_protocol::{Content, MAX_FRAME, Refusal, Request, response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async};

const SESSION: &str = "6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a";

/// A generous limit: the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

struct Gateway(TcpListener);

impl Gateway {
    async fn start() -> Gateway {
        Gateway(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn settings(&self) -> Settings {
        let address = self.0.local_addr().unwrap().to_string();
        Settings {
            address: Address::parse(&address).unwrap(),
            token: Some("secret".to_owned()),
            client_type: "test".to_owned(),
            client_id: "one".to_owned(),
            ca: None,
            patience: LIMIT,
        }
    }

    /// The next client, which has sent `connect` and got its answer.
    async fn client(&self) -> Peer<TcpStream> {
        Peer::admit(self.0.accept().await.unwrap().0).await
    }

    /// A client that is connected and in [`SESSION`], after event 3.
    async fn entered(&self) -> (Client, Peer<TcpStream>) {
        let (client, mut peer) = tokio::join!(Client::connect(self.settings()), self.client());
        let mut client = client.unwrap();
        let switch = SwitchParams { session_id: SESSION.to_owned(), after: None };
        let (entered, ()) = tokio::join!(client.call::<SessionsSwitch>(&switch), peer.enters(None, 3));
        assert_eq!(entered.unwrap().last_seq, 3);
        assert_eq!(client.agents().iter().map(|agent| &*agent.name).collect::<Vec<_>>(), ["a", "b"]);
        (client, peer)
    }
}

/// The gateway's side of a connection.
struct Peer<S>(WebSocketStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    async fn admit(socket: S) -> Peer<S> {
        let mut peer = Peer(accept_async(socket).await.unwrap());
        let connect = peer.request("connect").await;
        assert_eq!((&connect.params["version"], &connect.params["token"]), (&json!("1"), &json!("secret")));
        let agents = json!([{ "name": "a" }, { "name": "b", "allow": ["cwd"] }]);
        let connected =
            json!({ "gatewayVersion": "1", "supportedMethods": [], "clientId": "one", "agents": agents });
        peer.answer(&connect, connected).await;
        peer
    }

    async fn request(&mut self, method: &str) -> Request {
        let text = self.0.next().await.unwrap().unwrap();
        let request = Request::parse(text.to_text().unwrap()).unwrap();
        assert_eq!(request.method, method);
        request
    }

    /// Expects the client to enter [`SESSION`].
    async fn enters(&mut self, after: Option<i64>, last_seq: i64) {
        let switch = self.request("sessions.switch").await;
        assert_eq!(
            (switch.params["sessionId"].as_str(), switch.params.get("after")),
            (Some(SESSION), after.map(Value::from).as_ref())
        );
        self.entered(&switch, last_seq).await;
    }

    async fn entered(&mut self, switch: &Request, last_seq: i64) {
        let payload = json!({
            "sessionId": SESSION, "title": "", "recentMessages": [], "lastSeq": last_seq, "activeRun": null,
        });
        self.answer(switch, payload).await;
    }

    async fn answer(&mut self, request: &Request, payload: Value) {
        self.send(response::ok(&request.id, &payload)).await;
    }

    async fn title(&mut self, seq: i64) {
        let title = Event::from(Title { title: seq.to_string() });
        self.send(title.text(Some(SESSION), None, Some(seq), None)).await;
    }

    async fn send(&mut self, text: String) {
        self.0.send(Message::text(text)).await.unwrap();
    }
}

async fn title(client: &mut Client) -> String {
    match client.receive().await.unwrap() {
        Received::Event(frame, _) => match frame.event {
            Event::Title(Title { title }) => title,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

async fn is_lost(client: &mut Client) {
    let received = client.receive().await.unwrap();
    assert!(matches!(received, Received::Lost(_)), "{received:?}");
}

fn message(key: Option<&str>, text: &str) -> AgentParams {
    AgentParams {
        session_id: Some(SESSION.to_owned()),
        message: Content::from(text),
        priority: None,
        metadata: None,
        idempotency_key: key.map(str::to_owned),
        at: None,
    }
}

#[tokio::test]
async fn a_client_comes_back_after_the_last_event_it_saw_and_sends_again_what_got_no_response() {
    let gateway = Gateway::start().await;
    let (mut client, mut peer) = gateway.entered().await;
    let scene = async {
        peer.title(4).await;
        peer.title(6).await;
        let first = peer.request("agent").await;
        drop(peer);
        let mut peer = gateway.client().await;
        let switch = peer.request("sessions.switch").await;
        assert_eq!((&switch.params["sessionId"], &switch.params["after"]), (&json!(SESSION), &json!(6)));
        peer.title(9).await;
        peer.entered(&switch, 9).await;
        // Another connection of this client may still have been served for a moment.
        peer.title(9).await;
        let second = peer.request("agent").await;
        assert_eq!(first, second);
        peer.title(10).await;
        let payload = json!({ "runId": "r", "sessionId": SESSION, "status": "accepted" });
        peer.answer(&second, payload).await;
        peer.title(11).await;
        peer
    };
    let params = message(Some("key"), "hello");
    let (accepted, _peer) = tokio::join!(client.call::<Agent>(&params), scene);
    assert_eq!(accepted.unwrap().run_id.as_deref(), Some("r"));
    assert_eq!([title(&mut client).await, title(&mut client).await], ["4", "6"]);
    is_lost(&mut client).await;
    for seq in ["9", "10", "11"] {
        assert_eq!(title(&mut client).await, seq);
    }
}

#[tokio::test]
async fn a_client_that_only_listens_comes_back_too() {
    let gateway = Gateway::start().await;
    let (mut client, peer) = gateway.entered().await;
    drop(peer);
    is_lost(&mut client).await;
    let scene = async {
        let mut peer = gateway.client().await;
        let switch = peer.request("sessions.switch").await;
        // Nothing follows the response.
        peer.title(4).await;
        peer.title(5).await;
        peer.entered(&switch, 5).await;
        peer
    };
    let seen = async { [title(&mut client).await, title(&mut client).await] };
    let (seen, _peer) = tokio::join!(seen, scene);
    assert_eq!(seen, ["4", "5"]);
}

#[tokio::test]
async fn a_client_that_enters_again_sees_the_open_run_again() {
    let gateway = Gateway::start().await;
    let (mut client, mut peer) = gateway.entered().await;
    peer.title(4).await;
    let scene = async {
        let switch = peer.request("sessions.switch").await;
        peer.entered(&switch, 2).await;
        peer.title(3).await;
        peer.title(4).await;
    };
    let switch = SwitchParams { session_id: SESSION.to_owned(), after: None };
    let (entered, ()) = tokio::join!(client.call::<SessionsSwitch>(&switch), scene);
    entered.unwrap();
    for seq in ["4", "3", "4"] {
        assert_eq!(title(&mut client).await, seq);
    }
}

#[tokio::test]
async fn a_session_is_entered_event_by_event_also_over_a_lost_connection() {
    let gateway = Gateway::start().await;
    let (client, mut peer) = tokio::join!(Client::connect(gateway.settings()), gateway.client());
    let mut client = client.unwrap();
    client.enter(SESSION, 0).await;
    let switch = peer.request("sessions.switch").await;
    assert_eq!((&switch.params["sessionId"], &switch.params["after"]), (&json!(SESSION), &json!(0)));
    // Each is handed out before the response.
    peer.title(2).await;
    assert_eq!(title(&mut client).await, "2");
    peer.title(5).await;
    assert_eq!(title(&mut client).await, "5");
    drop(peer);
    is_lost(&mut client).await;
    let scene = async {
        let mut peer = gateway.client().await;
        let switch = peer.request("sessions.switch").await;
        assert_eq!(switch.params["after"], 5);
        peer.title(6).await;
        (peer, switch)
    };
    let (seen, (mut peer, switch)) = tokio::join!(title(&mut client), scene);
    assert_eq!(seen, "6");
    // A call waits until it is entered.
    let scene = async {
        peer.title(7).await;
        peer.entered(&switch, 7).await;
        let list = peer.request("sessions.list").await;
        peer.title(8).await;
        peer.answer(&list, json!({ "sessions": [], "total": 4 })).await;
    };
    let params = ListParams::default();
    let (listed, ()) = tokio::join!(client.call::<SessionsList>(&params), scene);
    assert_eq!(listed.unwrap().total, 4);
    assert_eq!(title(&mut client).await, "7");
    let entered = client.receive().await.unwrap();
    assert!(matches!(&entered, Received::Entered(switched) if switched.last_seq == 7), "{entered:?}");
    assert_eq!(title(&mut client).await, "8");
    // It is gone.
    let scene = async {
        let switch = peer.request("sessions.switch").await;
        peer.send(response::error(&switch.id, "unknown session", "unknown_session")).await;
    };
    client.enter(SESSION, 0).await;
    let (refused, ()) = tokio::join!(client.receive(), scene);
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert_eq!(client.session(), None);
}

#[tokio::test]
async fn a_request_that_ends_every_connection_is_given_up() {
    let gateway = Gateway::start().await;
    let (mut client, mut peer) = gateway.entered().await;
    let scene = async {
        for _ in 1..MAX_SENDS {
            peer.request("agent").await;
            drop(peer);
            peer = gateway.client().await;
            peer.enters(Some(3), 3).await;
        }
        peer.request("agent").await;
        drop(peer);
    };
    let params = message(Some("key"), "poison");
    let (refused, ()) = tokio::join!(client.call::<Agent>(&params), scene);
    assert!(matches!(refused, Err(Error::Unanswered { sent: MAX_SENDS, .. })), "{refused:?}");
}

#[tokio::test]
async fn what_must_not_be_done_twice_is_sent_once() {
    let gateway = Gateway::start().await;
    for method in ["agent", "sessions.new"] {
        let (mut client, mut peer) = gateway.entered().await;
        let scene = async {
            peer.request(method).await;
            drop(peer);
        };
        let call = async {
            match method {
                "agent" => client.call::<Agent>(&message(None, "hello")).await.map(drop),
                _ => client.call::<SessionsNew>(&NewParams::default()).await.map(drop),
            }
        };
        let (failed, ()) = tokio::join!(call, scene);
        assert!(matches!(failed, Err(Error::Unanswered { sent: 1, .. })), "{failed:?}");
    }
}

#[tokio::test]
async fn a_request_that_is_too_large_is_not_sent() {
    let gateway = Gateway::start().await;
    let (mut client, mut peer) = gateway.entered().await;
    // The same number of characters, but each takes two bytes as JSON.
    let refused = client.call::<Agent>(&message(Some("k"), &"\n".repeat(MAX_FRAME / 2))).await;
    assert!(matches!(refused, Err(Error::TooLarge(bytes)) if bytes > MAX_FRAME), "{refused:?}");
    let scene = async {
        let cancel = peer.request("agent.cancel").await;
        peer.answer(&cancel, json!({ "message": "Cancellation requested" })).await;
    };
    let cancel = CancelParams { run_id: "r".to_owned(), session_id: None };
    let (cancelled, ()) = tokio::join!(client.call::<AgentCancel>(&cancel), scene);
    cancelled.unwrap();
}

#[tokio::test]
async fn an_unreadable_frame_is_reported_and_the_client_continues() {
    let gateway = Gateway::start().await;
    let (mut client, mut peer) = gateway.entered().await;
    peer.send("nonsense".to_owned()).await;
    peer.send(json!({ "type": "event", "event": "final", "payload": {}, "seq": 4 }).to_string()).await;
    peer.send(json!({ "type": "event", "event": "novelty", "seq": 5 }).to_string()).await;
    peer.title(6).await;
    for said in ["a frame cannot be read: ", "the event 'final' (seq 4) cannot be read: missing field"] {
        match client.receive().await.unwrap() {
            Received::Unreadable(error) => assert!(error.to_string().starts_with(said), "{error}"),
            other => panic!("{other:?}"),
        }
    }
    match client.receive().await.unwrap() {
        Received::Unknown(text) => assert_eq!(text, r#"{"type":"event","event":"novelty","seq":5}"#),
        other => panic!("{other:?}"),
    }
    assert_eq!(title(&mut client).await, "6");
    let scene = async {
        let status = peer.request("status").await;
        peer.answer(&status, json!({ "gateway": 1 })).await;
    };
    let status = StatusParams::default();
    let (status, ()) = tokio::join!(client.call::<Status>(&status), scene);
    assert!(matches!(status, Err(Error::Unreadable(_))), "{status:?}");
}

#[tokio::test]
async fn a_refusal_is_an_error_of_its_request_alone() {
    let gateway = Gateway::start().await;
    let (mut client, mut peer) = gateway.entered().await;
    let scene = async {
        let request = peer.request("sessions.delete").await;
        peer.send(response::error(&request.id, "unknown session 'x'", "unknown_session")).await;
        peer.title(4).await;
    };
    let params = DeleteParams { session_id: "x".to_owned() };
    let (refused, ()) = tokio::join!(client.call::<SessionsDelete>(&params), scene);
    let Err(Error::Refused(Refusal { error, code })) = refused else { panic!("{refused:?}") };
    assert_eq!((&*error, &*code), ("unknown session 'x'", "unknown_session"));
    assert_eq!(title(&mut client).await, "4");
}

#[tokio::test]
async fn a_session_that_is_gone_after_a_reconnect_is_an_error_once() {
    let gateway = Gateway::start().await;
    let (mut client, peer) = gateway.entered().await;
    drop(peer);
    is_lost(&mut client).await;
    let scene = async {
        let mut peer = gateway.client().await;
        let switch = peer.request("sessions.switch").await;
        peer.send(response::error(&switch.id, "unknown session", "unknown_session")).await;
        let mut peer = gateway.client().await;
        let list = peer.request("sessions.list").await;
        peer.answer(&list, json!({ "sessions": [], "total": 0 })).await;
    };
    let calls = async {
        let gone = client.receive().await;
        assert!(matches!(gone, Err(Error::Refused(_))), "{gone:?}");
        assert_eq!(client.call::<SessionsList>(&ListParams::default()).await.unwrap().total, 0);
    };
    tokio::join!(calls, scene);
}

#[tokio::test]
async fn a_client_comes_back_to_the_session_that_it_has_made_or_was_brought_to_until_that_is_deleted() {
    const OTHER: &str = "0b6cd2f3-7f0f-4c39-8b9d-3d8f6a0c5b11";
    let gateway = Gateway::start().await;
    let (mut client, mut peer) = gateway.entered().await;
    assert_eq!(client.session(), Some(SESSION));
    let made = async {
        let request = peer.request("sessions.new").await;
        peer.answer(
            &request,
            json!({ "sessionId": OTHER, "title": "", "createdAt": "2026-01-01T00:00:00.000Z" }),
        )
        .await;
    };
    let params = NewParams::default();
    let (new, ()) = tokio::join!(client.call::<SessionsNew>(&params), made);
    assert_eq!((new.unwrap().session_id.as_str(), client.session()), (OTHER, Some(OTHER)));
    drop(peer);
    is_lost(&mut client).await;
    let scene = async {
        let mut peer = gateway.client().await;
        let switch = peer.request("sessions.switch").await;
        // It knows that there were no events before.
        assert_eq!((&switch.params["sessionId"], &switch.params["after"]), (&json!(OTHER), &json!(0)));
        let title = Event::from(Title { title: "first".to_owned() });
        peer.send(title.text(Some(OTHER), None, Some(1), None)).await;
        // A command switches it to another session, in which it has seen no event.
        let title = Event::from(Title { title: "elsewhere".to_owned() });
        peer.send(title.text(Some(SESSION), None, Some(1), None)).await;
        let payload = json!({
            "sessionId": OTHER, "title": "", "recentMessages": [], "lastSeq": 1, "activeRun": null,
        });
        peer.answer(&switch, payload).await;
        peer
    };
    let seen = async { [title(&mut client).await, title(&mut client).await] };
    let (seen, mut peer) = tokio::join!(seen, scene);
    assert_eq!(seen, ["first", "elsewhere"]);
    let error =
        |error_code| Event::from(event::Error { message: "x".to_owned(), error_code, retryable: false });
    for (code, left) in [(ErrorCode::Reported, Some(OTHER)), (ErrorCode::SessionDeleted, None)] {
        peer.send(error(code).text(Some(OTHER), None, None, None)).await;
        client.receive().await.unwrap();
        assert_eq!(client.session(), left);
    }
    drop(peer);
    is_lost(&mut client).await;
    let scene = async {
        let mut peer = gateway.client().await;
        let list = peer.request("sessions.list").await;
        peer.answer(&list, json!({ "sessions": [], "total": 0 })).await;
    };
    let params = ListParams::default();
    let (listed, ()) = tokio::join!(client.call::<SessionsList>(&params), scene);
    assert_eq!(listed.unwrap().total, 0);
}

#[tokio::test]
async fn the_response_to_a_call_that_was_given_up_is_not_taken_for_that_of_the_next() {
    let gateway = Gateway::start().await;
    let (mut client, mut peer) = gateway.entered().await;
    let params = ListParams::default();
    let first = tokio::select! {
        answer = client.call::<SessionsList>(&params) => panic!("{answer:?}"),
        request = peer.request("sessions.list") => request,
    };
    let scene = async {
        let second = peer.request("sessions.list").await;
        peer.answer(&first, json!({ "sessions": [], "total": 1 })).await;
        peer.answer(&second, json!({ "sessions": [], "total": 2 })).await;
    };
    let (listed, ()) = tokio::join!(client.call::<SessionsList>(&params), scene);
    assert_eq!(listed.unwrap().total, 2);
}

#[tokio::test]
async fn no_event_is_lost_with_a_future_that_is_dropped() {
    let gateway = Gateway::start().await;
    let (mut client, mut peer) = gateway.entered().await;
    let scene = async {
        for seq in 4..200 {
            peer.title(seq).await;
            tokio::task::yield_now().await;
        }
    };
    let listen = async {
        let mut seen = Vec::new();
        while seen.len() < 196 {
            tokio::select! {
                biased;
                title = title(&mut client) => seen.push(title),
                () = tokio::task::yield_now() => {}
            }
        }
        seen
    };
    let (seen, ()) = tokio::join!(listen, scene);
    assert_eq!(seen, (4..200).map(|seq: i64| seq.to_string()).collect::<Vec<_>>());
}

/// A certificate authority, and a server for `localhost` with a certificate of it.
fn tls() -> (String, tokio_rustls::TlsAcceptor) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let key = tokio_rustls::rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = tokio_rustls::rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    (pem, tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config)))
}

#[tokio::test]
async fn over_tls_a_client_trusts_the_system_and_the_authority_that_it_was_given() {
    let gateway = Gateway::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (authority, acceptor) = tls();
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, authority).unwrap();
    let port = gateway.0.local_addr().unwrap().port();
    let settings = |host: &str, ca| Settings {
        address: Address::parse(&format!("https://{host}:{port}")).unwrap(),
        ca,
        ..gateway.settings()
    };

    let scene =
        async { Peer::admit(acceptor.accept(gateway.0.accept().await.unwrap().0).await.unwrap()).await };
    let (client, mut peer) = tokio::join!(Client::connect(settings("localhost", Some(file.clone()))), scene);
    let mut client = client.unwrap();
    peer.title(1).await;
    assert_eq!(title(&mut client).await, "1");

    for (host, ca) in [("localhost", None), ("127.0.0.1", Some(file))] {
        let scene = async { acceptor.accept(gateway.0.accept().await.unwrap().0).await.map(drop) };
        let (refused, _) = tokio::join!(Client::connect(settings(host, ca)), scene);
        let refused = refused.err();
        assert!(matches!(refused, Some(Error::Untrusted(_))), "{host}: {refused:?}");
    }

    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for (file, why) in [(empty, "no certificate"), (dir.path().join("none"), "No such file")] {
        let refused = Client::connect(settings("localhost", Some(file))).await.err();
        assert!(matches!(&refused, Some(Error::Ca { why: said, .. }) if said.contains(why)), "{refused:?}");
    }
}
