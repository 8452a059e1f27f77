//! Stable words for errors: the key `code` of error responses, here and over HTTP. Errors of the thread behind a session
//! have the words that SPEC.md lists.

macro_rules! codes {
    ($($name:ident = $word:literal;)*) => {
        $(pub const $name: &str = $word;)*

        /// All of them, as docs/PROTOCOL.md lists them.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

codes! {
    MALFORMED = "malformed";
    NOT_CONNECTED = "not_connected";
    ALREADY_CONNECTED = "already_connected";
    UNSUPPORTED_VERSION = "unsupported_version";
    UNAUTHORIZED = "unauthorized";
    FORBIDDEN = "forbidden";
    READ_ONLY = "read_only";
    UNKNOWN_METHOD = "unknown_method";
    BAD_PARAMS = "bad_params";
    BAD_REQUEST = "bad_request";
    NO_SESSION = "no_session";
    UNKNOWN_SESSION = "unknown_session";
    UNKNOWN_RUN = "unknown_run";
    UNKNOWN_PERMISSION = "unknown_permission";
    NOT_FOUND = "not_found";
    CONFLICT = "conflict";
    TOO_MANY_CONNECTIONS = "too_many_connections";
    TOO_MANY_REQUESTS = "too_many_requests";
    UNAVAILABLE = "unavailable";
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_documentation_lists_the_codes_of_errors() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/PROTOCOL.md")).unwrap();
        let section = page.split_once("\n### Error codes\n").unwrap().1.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
        let words = rows.flat_map(|(words, _)| words.split(", ")).map(|word| word.trim_matches('`'));
        let mut listed: Vec<&str> = words.filter(|word| *word != "code").collect();
        let mut known = super::ALL.to_vec();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
    }
}
