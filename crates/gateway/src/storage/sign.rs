//! Signatures of URLs: JSON Web Tokens with the object and the time of expiry.

use std::time::{Duration, SystemTime};

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use super::Object;

/// How long a signature is valid.
const LIFETIME: Duration = Duration::from_secs(3600);

/// The prefix of a signed URL's path.
pub const PREFIX: &str = "/storage/v1/object/sign/";

pub struct Signer {
    encode: EncodingKey,
    decode: DecodingKey,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    /// Bucket and path.
    url: String,
    iat: u64,
    exp: u64,
}

/// Why a signature is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSignature {
    #[error("the signature of the URL has expired")]
    Expired,
    #[error("the URL is not signed by this gateway")]
    Foreign,
}

impl Signer {
    pub fn new(secret: &[u8]) -> Signer {
        Signer { encode: EncodingKey::from_secret(secret), decode: DecodingKey::from_secret(secret) }
    }

    /// The path and query of a signed URL.
    pub fn url(&self, object: &Object) -> String {
        self.url_at(object, SystemTime::now())
    }

    fn url_at(&self, object: &Object, now: SystemTime) -> String {
        let iat = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = Claims { url: object.name(), iat, exp: iat + LIFETIME.as_secs() };
        // Signing with a key in memory does not fail; if it did, a URL without a token would be refused.
        let token =
            jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.encode).unwrap_or_default();
        format!("{PREFIX}{}?token={token}", object.name())
    }

    /// # Errors
    ///
    /// The token was not issued by this gateway for this object, or has expired.
    pub fn check(&self, object: &Object, token: &str) -> Result<(), BadSignature> {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        let decoded =
            jsonwebtoken::decode::<Claims>(token, &self.decode, &validation).map_err(|e| match e.kind() {
                jsonwebtoken::errors::ErrorKind::ExpiredSignature => BadSignature::Expired,
                _ => BadSignature::Foreign,
            })?;
        if decoded.claims.url == object.name() { Ok(()) } else { Err(BadSignature::Foreign) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_good_for_one_object_for_an_hour() {
        let (signer, other) = (Signer::new(b"secret"), Signer::new(b"other"));
        let (a, b) = (Object::new("x", "a").unwrap(), Object::new("x", "b").unwrap());
        let token = |url: String| url.split_once("?token=").unwrap().1.to_owned();
        let good = token(signer.url(&a));
        assert_eq!(signer.check(&a, &good), Ok(()));
        assert_eq!(signer.check(&b, &good), Err(BadSignature::Foreign));
        assert_eq!(other.check(&a, &good), Err(BadSignature::Foreign));
        assert_eq!(signer.check(&a, ""), Err(BadSignature::Foreign));
        let ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
        assert_eq!(signer.check(&a, &token(signer.url_at(&a, ago(3590)))), Ok(()));
        assert_eq!(signer.check(&a, &token(signer.url_at(&a, ago(3601)))), Err(BadSignature::Expired));
        // A token with `"alg":"none"`.
        let none = "eyJhbGciOiJub25lIn0.eyJ1cmwiOiJ4L2EiLCJpYXQiOjEsImV4cCI6OTk5OTk5OTk5OTl9.";
        assert_eq!(signer.check(&a, none), Err(BadSignature::Foreign));
    }
}
