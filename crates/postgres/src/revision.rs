//! How a change of a consumer's row is told from another.

/// The next revision of a consumer's row. No number comes twice: the server may crash and lose a revision that somebody
/// has seen, and what others store then must not look like that one.
pub const NEXT_REVISION: &str = "(random() * 9007199254740992)::bigint";
