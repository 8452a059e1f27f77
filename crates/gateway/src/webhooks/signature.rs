//! The signatures of those who send webhooks: over the bytes of the body, as they came.

use std::fmt;
use std::time::SystemTime;

use axum::http::HeaderMap;
use hmac_sha256::HMAC;
use serde::Deserialize;
use standardwebhooks::Webhook;
use subtle::ConstantTimeEq;

/// How far a sender's clock may be from ours, in seconds; older requests may be replays.
const TOLERANCE: u64 = 5 * 60;

/// The shortest secret, in bytes.
const SHORTEST: usize = 8;

/// Whose webhooks they are, which says how they are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// `X-Hub-Signature-256`, which knows no time.
    GitHub,
    /// `Stripe-Signature`, with a time.
    Stripe,
    /// `webhook-id`, `webhook-timestamp` and `webhook-signature`, of standardwebhooks.com.
    Standard,
}

/// A webhook whose signature is right.
#[derive(Debug, PartialEq, Eq)]
pub struct Signed {
    /// What the sender calls this delivery, however often it sends it.
    pub id: String,
    /// What has happened, if the sender says so: `push`, `invoice.paid`.
    pub kind: Option<String>,
}

/// Why a webhook is refused. Strangers only learn that it is.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is not signed by the secret, or at another time.
    Unsigned(&'static str),
    /// It is, but lacks what it must have.
    Malformed(&'static str),
}

impl Sender {
    pub fn parse(name: &str) -> Option<Sender> {
        match name {
            "github" => Some(Sender::GitHub),
            "stripe" => Some(Sender::Stripe),
            "standard" => Some(Sender::Standard),
            _ => None,
        }
    }
}

/// What proves that a webhook is from its sender.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The secret as the sender shows it.
    ///
    /// # Errors
    ///
    /// It is none: too short, or not base64 where it must be.
    pub fn new(sender: Sender, text: &str) -> Result<Secret, &'static str> {
        let text = text.trim();
        if text.len() < SHORTEST {
            return Err("is shorter than 8 characters, and could be guessed");
        }
        if sender == Sender::Standard && Webhook::new(text).is_err() {
            return Err("is not base64, after whsec_");
        }
        Ok(Secret(text.as_bytes().to_vec()))
    }

    fn signs(&self, message: &[&[u8]], hex: &str) -> bool {
        let mut mac = HMAC::new(&self.0);
        message.iter().for_each(|part| mac.update(part));
        let own: String = mac.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        own.as_bytes().ct_eq(hex.trim().to_ascii_lowercase().as_bytes()).into()
    }
}

/// Checks who sent a webhook.
///
/// # Errors
///
/// Why it is not taken.
pub fn check(sender: Sender, secret: &Secret, headers: &HeaderMap, body: &[u8]) -> Result<Signed, Refused> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match sender {
        Sender::GitHub => {
            let signature = header("x-hub-signature-256").ok_or(Refused::Unsigned("no signature"))?;
            let hex = signature.strip_prefix("sha256=").ok_or(Refused::Unsigned("an unknown signature"))?;
            if !secret.signs(&[body], hex) {
                return Err(Refused::Unsigned("a wrong signature"));
            }
            let id = header("x-github-delivery").ok_or(Refused::Malformed("X-GitHub-Delivery is missing"))?;
            Ok(Signed { id: id.to_owned(), kind: header("x-github-event").map(str::to_owned) })
        }
        Sender::Stripe => {
            let signature = header("stripe-signature").ok_or(Refused::Unsigned("no signature"))?;
            let fields = || signature.split(',').filter_map(|field| field.trim().split_once('='));
            let time = fields().find(|(name, _)| *name == "t").map_or("", |(_, time)| time);
            let signed = [time.as_bytes(), b".", body];
            if !fields().any(|(name, hex)| name == "v1" && secret.signs(&signed, hex)) {
                return Err(Refused::Unsigned("a wrong signature"));
            }
            must_be_now(time)?;
            let event = Event::of(body);
            let id = event.id.ok_or(Refused::Malformed("the body has no 'id'"))?;
            Ok(Signed { id, kind: event.kind })
        }
        Sender::Standard => {
            must_be_now(header("webhook-timestamp").unwrap_or_default())?;
            let text = str::from_utf8(&secret.0).unwrap_or_default();
            let is_signed = Webhook::new(text).is_ok_and(|hook| hook.verify(body, headers).is_ok());
            if !is_signed {
                return Err(Refused::Unsigned("a wrong signature"));
            }
            let id = header("webhook-id").unwrap_or_default().to_owned();
            Ok(Signed { id, kind: Event::of(body).kind })
        }
    }
}

/// A replay is told by its time.
fn must_be_now(seconds: &str) -> Result<(), Refused> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    match seconds.parse::<u64>() {
        Ok(then) if now.abs_diff(then) <= TOLERANCE => Ok(()),
        Ok(_) => Err(Refused::Unsigned("signed at another time than now")),
        Err(_) => Err(Refused::Unsigned("no time")),
    }
}

/// What a body says about itself.
#[derive(Default, Deserialize)]
struct Event {
    id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Event {
    fn of(body: &[u8]) -> Event {
        serde_json::from_slice(body).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    /// The example in GitHub's documentation of webhooks.
    #[test]
    fn a_signature_of_github_is_that_of_its_documentation() {
        let secret = Secret::new(Sender::GitHub, "It's a Secret to Everybody").unwrap();
        let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let given = headers(&[
            ("x-hub-signature-256", signature),
            ("x-github-delivery", "d1"),
            ("x-github-event", "push"),
        ]);
        let check =
            |headers: &HeaderMap, body: &str| check(Sender::GitHub, &secret, headers, body.as_bytes());
        assert_eq!(
            check(&given, "Hello, World!").unwrap(),
            Signed { id: "d1".into(), kind: Some("push".into()) }
        );
        assert!(matches!(check(&given, "Hello, World?"), Err(Refused::Unsigned(_))));
        let other = headers(&[("x-hub-signature-256", &signature[7..])]);
        assert!(matches!(check(&other, "Hello, World!"), Err(Refused::Unsigned(_))));
        assert!(matches!(check(&headers(&[]), "Hello, World!"), Err(Refused::Unsigned(_))));
        let without_id = headers(&[("x-hub-signature-256", signature)]);
        assert!(matches!(check(&without_id, "Hello, World!"), Err(Refused::Malformed(_))));
    }

    #[test]
    fn a_webhook_of_another_time_is_refused() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let stripe = Secret::new(Sender::Stripe, "whsec_stripe").unwrap();
        let body = br#"{"id":"evt_1","type":"invoice.paid"}"#;
        let signed = |time: &str| {
            let mut mac = HMAC::new("whsec_stripe");
            mac.update(time.as_bytes());
            mac.update(b".");
            mac.update(body);
            let hex: String = mac.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            headers(&[("stripe-signature", &format!("t={time},v1=00,v1={hex},v0=11"))])
        };
        let at = |time: &str| check(Sender::Stripe, &stripe, &signed(time), body);
        assert_eq!(at(&now.to_string()).unwrap().kind.as_deref(), Some("invoice.paid"));
        assert!(at(&(now - 290).to_string()).is_ok() && at(&(now + 290).to_string()).is_ok());
        for other in [
            (now - 310).to_string(),
            (now + 310).to_string(),
            "0".into(),
            i64::MIN.to_string(),
            String::new(),
        ] {
            assert!(matches!(at(&other), Err(Refused::Unsigned(_))), "{other}");
        }

        let text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let standard = Secret::new(Sender::Standard, text).unwrap();
        let signed = |time: i64| {
            let signature = Webhook::new(text).unwrap().sign("msg_1", time, body).unwrap();
            headers(&[
                ("webhook-id", "msg_1"),
                ("webhook-timestamp", &time.to_string()),
                ("webhook-signature", &format!("v1,AAAA {signature}")),
            ])
        };
        let at = |time: i64| check(Sender::Standard, &standard, &signed(time), body);
        let now = now as i64;
        assert_eq!(at(now).unwrap(), Signed { id: "msg_1".into(), kind: Some("invoice.paid".into()) });
        for other in [now - 310, now + 310, 0, i64::MIN, i64::MAX] {
            assert!(matches!(at(other), Err(Refused::Unsigned(_))), "{other}");
        }
    }

    #[test]
    fn a_secret_is_long_enough_and_not_shown() {
        assert!(Secret::new(Sender::GitHub, "short").is_err() && Secret::new(Sender::Stripe, "").is_err());
        assert!(Secret::new(Sender::Standard, "whsec_not base64!").is_err());
        assert!(!format!("{:?}", Secret::new(Sender::GitHub, "long enough").unwrap()).contains("long"));
    }
}
