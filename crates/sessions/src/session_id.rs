//! The id of a session: a UUID, which is also the name of its directory.

use std::fmt;

use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Uuid);

/// What the ids of hidden sessions begin with; their version is 8.
const HIDDEN: &[u8] = b"tasks\0";

impl SessionId {
    pub fn random() -> SessionId {
        SessionId(Uuid::new_v4())
    }

    /// The id of a session that no list has, and that is deleted soon: see [`Root::forgotten`](crate::Root::forgotten).
    pub fn hidden() -> SessionId {
        let mut bytes = Uuid::new_v4().into_bytes();
        bytes[..HIDDEN.len()].copy_from_slice(HIDDEN);
        SessionId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    pub fn is_hidden(self) -> bool {
        self.0.as_bytes().starts_with(HIDDEN) && self.0.get_version_num() == 8
    }

    /// Parses a UUID in its usual form of 36 characters. Rejects other forms: it becomes part of a path.
    pub fn parse(text: &str) -> Option<SessionId> {
        (text.len() == 36).then(|| Uuid::try_parse(text).ok().map(SessionId)).flatten()
    }

    /// Parses the name of a session's directory.
    pub fn parse_name(name: &std::ffi::OsStr) -> Option<SessionId> {
        SessionId::parse(name.to_str()?)
    }

    /// The session for a name chosen by a client: the name itself if it is a UUID, else a UUID of version 5
    /// derived from it.
    pub fn named(name: &str) -> SessionId {
        SessionId::parse(name).unwrap_or_else(|| {
            SessionId(Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("thread:session:{name}").as_bytes()))
        })
    }

    /// An id derived from a key chosen by a client, the same each time.
    pub fn made_from(self, key: impl AsRef<[u8]>) -> Uuid {
        Uuid::new_v5(&self.0, key.as_ref())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}
