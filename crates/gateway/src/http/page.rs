//! The page for browsers: the files of `web/`, compiled into the program.
//!
//! They hold nothing of the sessions, so they need no token. The page gets it from the link, and exchanges it for
//! the cookie.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::sync::{Arc, OnceLock};

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::error::HttpError;
use crate::access::token::TokenCheck;
use crate::gateway::Gateway;

/// Nothing may come from another host, and no text may become script, style or markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; media-src 'self' data:; manifest-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

struct File {
    name: &'static str,
    text: Cow<'static, str>,
    packed: OnceLock<Packed>,
}

/// A file as it is sent.
struct Packed {
    /// Compressed by gzip.
    bytes: Vec<u8>,
    tag: String,
}

/// The files that are served, by the ends of their names.
const KINDS: [(&str, &str); 5] = [
    ("html", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("webmanifest", "application/manifest+json"),
];

macro_rules! files {
    ($($name:literal)*) => {
        static FILES: [File; [$($name),*].len()] = [$(File {
            name: $name,
            text: Cow::Borrowed(include_str!(concat!("../../web/", $name))),
            packed: OnceLock::new(),
        }),*];
    };
}

files! {
    "index.html"
    "style.css"
    "icon.svg"
    "address.js"
    "agents.js"
    "announce.js"
    "app.js"
    "attachments.js"
    "blocks.js"
    "changes.js"
    "code.js"
    "commands.js"
    "composer.js"
    "connection.js"
    "conversation.js"
    "dialog.js"
    "diff.js"
    "export.js"
    "focus.js"
    "formula.js"
    "formulas.js"
    "frame.js"
    "kept.js"
    "keys.js"
    "language.js"
    "later.js"
    "login.js"
    "manifest.webmanifest"
    "look/look.css"
    "look/actions.js"
    "look/api.js"
    "look/card.js"
    "look/chart.js"
    "look/charts.js"
    "look/compared.js"
    "look/command.js"
    "look/consumer.js"
    "look/consumers.js"
    "look/dead.js"
    "look/event.js"
    "look/events.js"
    "look/facets.js"
    "look/first.js"
    "look/given.js"
    "look/letter.js"
    "look/look.js"
    "look/pages.js"
    "look/plot.js"
    "look/push.js"
    "look/rows.js"
    "look/run.js"
    "look/scale.js"
    "look/spent.js"
    "look/stream.js"
    "look/tail.js"
    "look/thread.js"
    "look/threads.js"
    "look/trace.js"
    "look/words.js"
    "mark.js"
    "markdown.js"
    "messages.js"
    "nav.js"
    "notices.js"
    "offline.js"
    "parser.js"
    "parts.js"
    "permission.js"
    "reader.js"
    "run.js"
    "runs.js"
    "scheduled.js"
    "sessions.js"
    "settings.js"
    "state.js"
    "strip.js"
    "talk.js"
    "text.js"
    "time.js"
    "tool.js"
    "variants.js"
    "vendor/diff/diff/base.js"
    "vendor/diff/diff/line.js"
    "vendor/diff/util/params.js"
    "vendor/highlight/core.js"
    "vendor/highlight/languages/bash.js"
    "vendor/highlight/languages/c.js"
    "vendor/highlight/languages/cpp.js"
    "vendor/highlight/languages/csharp.js"
    "vendor/highlight/languages/css.js"
    "vendor/highlight/languages/dart.js"
    "vendor/highlight/languages/diff.js"
    "vendor/highlight/languages/dockerfile.js"
    "vendor/highlight/languages/elixir.js"
    "vendor/highlight/languages/go.js"
    "vendor/highlight/languages/graphql.js"
    "vendor/highlight/languages/haskell.js"
    "vendor/highlight/languages/ini.js"
    "vendor/highlight/languages/java.js"
    "vendor/highlight/languages/javascript.js"
    "vendor/highlight/languages/json.js"
    "vendor/highlight/languages/kotlin.js"
    "vendor/highlight/languages/lua.js"
    "vendor/highlight/languages/makefile.js"
    "vendor/highlight/languages/markdown.js"
    "vendor/highlight/languages/nginx.js"
    "vendor/highlight/languages/perl.js"
    "vendor/highlight/languages/php.js"
    "vendor/highlight/languages/powershell.js"
    "vendor/highlight/languages/python.js"
    "vendor/highlight/languages/r.js"
    "vendor/highlight/languages/ruby.js"
    "vendor/highlight/languages/rust.js"
    "vendor/highlight/languages/scala.js"
    "vendor/highlight/languages/shell.js"
    "vendor/highlight/languages/sql.js"
    "vendor/highlight/languages/swift.js"
    "vendor/highlight/languages/typescript.js"
    "vendor/highlight/languages/xml.js"
    "vendor/highlight/languages/yaml.js"
    "vendor/katex.js"
    "vendor/markdown-it-footnote.js"
    "vendor/markdown-it.js"
    "vendor/preact.js"
    "words/de.js"
    "words/en.js"
}

impl File {
    fn named(name: &str) -> Option<&'static File> {
        FILES.iter().find(|file| file.name == name)
    }

    fn kind(&self) -> &'static str {
        let end = self.name.rsplit_once('.').map_or("", |(_, end)| end);
        KINDS.iter().find(|(kind, _)| end == *kind).map_or("application/octet-stream", |(_, name)| name)
    }

    fn packed(&'static self) -> &'static Packed {
        self.packed.get_or_init(|| {
            let mut packer = GzEncoder::new(Vec::new(), Compression::best());
            // Writing to memory does not fail; an empty file would be noticed at once.
            let bytes = packer.write_all(self.text.as_bytes()).and_then(|()| packer.finish());
            let mut hasher = DefaultHasher::new();
            self.text.hash(&mut hasher);
            Packed { bytes: bytes.unwrap_or_default(), tag: format!("\"{:016x}\"", hasher.finish()) }
        })
    }

    fn response(&'static self, request: &HeaderMap) -> Response {
        let packed = self.packed();
        let headers = [
            (header::CONTENT_TYPE, self.kind()),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "Accept-Encoding, Authorization, Cookie"),
            (header::ETAG, &packed.tag),
        ];
        let asks = |name| request.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if asks(header::IF_NONE_MATCH).contains(&packed.tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        if asks(header::ACCEPT_ENCODING).contains("gzip") {
            return (headers, [(header::CONTENT_ENCODING, "gzip")], packed.bytes.as_slice()).into_response();
        }
        (headers, &*self.text).into_response()
    }
}

/// `GET /page/…`.
pub async fn file(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, HttpError> {
    let file = File::named(&name);
    let file = file.ok_or_else(|| HttpError::new(StatusCode::NOT_FOUND, "there is nothing here".into()))?;
    Ok(file.response(&headers))
}

/// `GET /`: open to anyone. The token is in the fragment of the link, which browsers do not send.
pub async fn page(
    State(gateway): State<Arc<Gateway>>,
    Extension(check): Extension<TokenCheck>,
    headers: HeaderMap,
) -> Response {
    // A program is one gateway.
    static PAGES: [OnceLock<File>; 2] = [const { OnceLock::new() }; 2];
    let is_known = matches!(check, TokenCheck::Valid(_));
    let page = PAGES[usize::from(is_known)].get_or_init(|| File {
        text: Cow::Owned(html(&gateway, is_known)),
        name: FILES[0].name,
        packed: OnceLock::new(),
    });
    page.response(&headers)
}

/// The page tells its script where to open, whether one may only look, whether one logs in, and, if the request has a
/// valid token or login, who answers.
fn html(gateway: &Gateway, is_known: bool) -> String {
    let nobody_to_talk_to = gateway.agents.is_empty() && !gateway.inspector.threads.named().is_empty();
    let opens = if nobody_to_talk_to { " data-opens=\"look\"" } else { "" };
    let looks = if gateway.read_only { " data-read-only" } else { "" };
    let logs_in = if gateway.token.is_some() { " data-login" } else { "" };
    let agent = gateway
        .agents
        .first()
        .filter(|_| is_known)
        .map(|agent| if agent.is_named { &*agent.name } else { "" });
    let agent = agent.map(|name| format!(" data-agent=\"{name}\"")).unwrap_or_default();
    FILES[0].text.replacen("<html", &format!("<html{opens}{looks}{logs_in}{agent}"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_is_served() {
        let web = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
        let (mut there, mut folders) = (Vec::new(), vec![web.clone()]);
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| KINDS.iter().any(|(kind, _)| end == *kind)) {
                    there.push(path.strip_prefix(&web).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        let mut served: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        there.sort();
        served.sort_unstable();
        assert_eq!(there, served);
        assert_eq!(FILES[0].name, "index.html");
    }
}
