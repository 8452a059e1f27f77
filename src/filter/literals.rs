//! Reading a filter's text: how much work it is, and what of it can be refused before any event is
//! asked about (patterns that are too long, and times that mean the clock).
//!
//! Only literals are found and refused here. The same things are refused again where they come out of
//! an expression, event by event; finding them early is a courtesy to whoever typed them.

use super::MAX_PATTERN;
use super::functions::{ASKS_THE_CLOCK, DATES, Role, lacks_a_time};

#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// A name or keyword, in lower case.
    Word(String),
    Text(String),
    Other(char),
}

/// Why a literal pattern cannot work; completes "the filter …".
pub fn long_pattern(text: &str) -> Option<String> {
    let tokens = tokens(text);
    let at = |n: usize| tokens.get(n);
    (0..tokens.len()).find_map(|n| match at(n) {
        Some(Token::Word(word)) if word == "like" || word == "glob" => {
            let next = if at(n + 1) == Some(&Token::Other('(')) { n + 2 } else { n + 1 };
            match at(next) {
                Some(Token::Text(pattern)) if pattern.len() > MAX_PATTERN as usize => Some(format!(
                    "has a {} pattern of {} bytes; at most {MAX_PATTERN} are taken",
                    word.to_ascii_uppercase(),
                    pattern.len()
                )),
                _ => None,
            }
        }
        _ => None,
    })
}

/// Words that cost nothing where they stand in an expression. All others name something that does:
/// a field to be read, a function to be called, a type to be cast to.
const FREE: [&str; 16] = [
    "and", "or", "not", "in", "is", "null", "like", "glob", "between", "escape", "case", "when", "then",
    "else", "end", "as",
];

/// How much work a filter of this text is: one for each field and function that it names, and what
/// its patterns cost beyond that.
pub fn work(text: &str) -> i64 {
    let tokens = tokens(text);
    let cost = |n: usize| match &tokens[n] {
        Token::Word(word) if word == "like" || word == "glob" => {
            let length = match (tokens.get(n + 1), tokens.get(n + 2)) {
                // What something is appended to may get as long as any.
                (Some(Token::Text(pattern)), next) if next != Some(&Token::Other('|')) => {
                    pattern.len() as i64
                }
                _ => MAX_PATTERN.into(),
            };
            length / if word == "like" { 4 } else { 2 }
        }
        Token::Word(word) => {
            i64::from(!FREE.contains(&word.as_str()) && !word.starts_with(|c: char| c.is_ascii_digit()))
        }
        _ => 0,
    };
    (0..tokens.len()).map(cost).sum()
}

/// Why a literal time would ask the clock; completes "the filter …".
pub fn clock(text: &str) -> Option<String> {
    let tokens = tokens(text);
    for (n, token) in tokens.iter().enumerate() {
        let Token::Word(name) = token else { continue };
        if !DATES.contains(&name.as_str()) || tokens.get(n + 1) != Some(&Token::Other('(')) {
            continue;
        }
        let arguments = arguments(&tokens[n + 2..]);
        let clock = |(n, argument): (usize, &&[Token])| match argument {
            [Token::Text(text)] => Role::of(name, n).asks_the_clock(text.as_bytes()),
            _ => false,
        };
        if lacks_a_time(name, arguments.len()) || arguments.iter().enumerate().any(clock) {
            return Some(format!("calls {name}() so that it {ASKS_THE_CLOCK}"));
        }
    }
    None
}

/// The arguments of a call, behind its opening bracket.
fn arguments(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut arguments, mut depth, mut began) = (Vec::new(), 0, 0);
    for (n, token) in tokens.iter().enumerate() {
        match token {
            Token::Other('(') => depth += 1,
            Token::Other(')') if depth > 0 => depth -= 1,
            Token::Other(')') => {
                if n > 0 {
                    arguments.push(&tokens[began..n]);
                }
                return arguments;
            }
            Token::Other(',') if depth == 0 => {
                arguments.push(&tokens[began..n]);
                began = n + 1;
            }
            _ => {}
        }
    }
    // No end: no expression either. It will not compile.
    vec![&tokens[..0]; 2]
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("--") {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if rest.starts_with("/*") {
            rest = rest[2..].split_once("*/").map_or("", |(_, after)| after);
        } else if matches!(first, '\'' | '"' | '`' | '[') {
            let (inner, after) = quoted(&rest[1..], if first == '[' { ']' } else { first });
            tokens.push(if first == '\'' { Token::Text(inner) } else { Token::Word(inner.to_lowercase()) });
            rest = after;
        } else if is_word(first) {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_lowercase()));
            rest = &rest[end..];
        } else {
            if !first.is_ascii_whitespace() {
                tokens.push(Token::Other(first));
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii()
}

/// What stands up to the closing quote, and what comes after it. A doubled quote is one.
fn quoted(text: &str, quote: char) -> (String, &str) {
    let (mut inner, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(quote) {
        inner.push_str(before);
        match after.strip_prefix(quote) {
            Some(more) if quote != ']' => {
                inner.push(quote);
                rest = more;
            }
            _ => return (inner, after),
        }
    }
    inner.push_str(rest);
    (inner, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_times_that_mean_the_clock_are_found() {
        for text in [
            "date('now') = 1",
            "a AND DateTime ( 'Now' , '-1 day')",
            "strftime('%s') > 1",
            "date() = 1",
            "strftime('%s', /* , */ 'now')",
            "\"date\"('now')",
            "[time]('subsec')",
            "timediff(created_at, 'now') < 1",
            "date(created_at, '+1 day', 'localtime') = 1",
            "date(max(1, 2), 'utc')",
            "date(-- )\n'now')",
        ] {
            assert!(clock(text).is_some(), "{text}");
        }
        for text in [
            "date(created_at) = 'now'",
            "content = 'date(''now'')'",
            "strftime('now', created_at)",
            "date = 'now'",
            "date(created_at) = 1 -- date('now')",
            "/* date() */ 1",
            "date(lower('now'))",
            "date(",
            "'",
            "datex('now')",
            "created_at > 'utc' AND date(created_at, '+1 day') > 'localtime'",
        ] {
            assert_eq!(clock(text), None, "{text}");
        }
    }

    #[test]
    fn work_is_what_a_text_names_and_its_patterns() {
        let pattern = "a".repeat(100);
        for (text, expected) in [
            ("type = 'message' AND (source = 'a' OR id > 3)", 3),
            ("id IN (content, content, 'content', \"content\")", 4),
            ("upper(content) IS NOT NULL -- content", 2),
            ("CAST(content AS INTEGER) = 1", 3),
            (&format!("content LIKE '{pattern}'"), 26),
            (&format!("content NOT GLOB '{pattern}' AND 1"), 51),
            ("content LIKE 'a' || 'b'", 65),
            ("content GLOB ('a')", 129),
        ] {
            assert_eq!(work(text), expected, "{text}");
        }
    }

    #[test]
    fn literal_patterns_that_are_too_long_are_found() {
        let long = "a".repeat(257);
        let within = "''".repeat(256);
        for text in
            ["content like '%'", "content NOT GLOB '%'", "like('%', content)", "0 AND content LIKE ('%')"]
        {
            assert!(long_pattern(&text.replace('%', &long)).is_some(), "{text}");
            assert_eq!(long_pattern(&text.replace('%', &within)), None, "{text}");
        }
        assert_eq!(long_pattern(&format!("content = '{long}' AND content LIKE 'a'")), None);
        assert_eq!(long_pattern(&format!("content LIKE 'a' -- LIKE '{long}'")), None);
    }
}
