//! The name of a session: a UUID, which is also the name of its directory.

use std::fmt;

use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Uuid);

impl SessionId {
    pub fn random() -> SessionId {
        SessionId(Uuid::new_v4())
    }

    /// A UUID in its usual form of 36 characters; nothing else, for it becomes part of a path.
    pub fn parse(text: &str) -> Option<SessionId> {
        (text.len() == 36).then(|| Uuid::try_parse(text).ok().map(SessionId)).flatten()
    }

    /// The session of a name that a client has chosen: the name itself if it is a UUID, else one made
    /// from it.
    pub fn named(name: &str) -> SessionId {
        SessionId::parse(name).unwrap_or_else(|| {
            SessionId(Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("thread:session:{name}").as_bytes()))
        })
    }

    /// An id made from a key that a client has chosen, the same each time.
    pub fn made_from(self, key: &str) -> Uuid {
        Uuid::new_v5(&self.0, key.as_bytes())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}
