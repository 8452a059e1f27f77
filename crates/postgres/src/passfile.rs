//! The password file, `~/.pgpass`: lines of `host:port:database:user:password`.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Once;

/// The host that stands for a socket in the default directory.
const LOCAL: &str = "localhost";

/// The password for one of these hosts, if the file has one. A file that others may read is ignored, as libpq
/// does.
pub fn find(file: &Path, hosts: &[String], ports: &[String], database: &str, user: &str) -> Option<String> {
    let about = file.metadata().ok().filter(|about| about.is_file())?;
    if about.permissions().mode() & 0o077 != 0 {
        static ONCE: Once = Once::new();
        let note =
            format!("Warning: {} is ignored: others may read it; give it the mode 600\n", file.display());
        ONCE.call_once(|| drop(std::io::stderr().write_all(note.as_bytes())));
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    hosts.iter().zip(ports).find_map(|(host, port)| find_in(&text, [host, port, database, user]))
}

/// The last field of the first line whose other fields match.
fn find_in(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = split(line);
        let is_match = |(at, (field, wanted)): (usize, (&String, &str))| {
            let is_socket = at == 0 && wanted.starts_with('/');
            field == "*" || field == wanted || (is_socket && field == LOCAL)
        };
        let matches = fields.len() >= 5 && fields.iter().zip(wanted).enumerate().all(is_match);
        matches.then(|| fields[4].clone()).filter(|password| !password.is_empty())
    })
}

/// The fields of a line; a backslash takes the next character as it is.
fn split(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match c {
            ':' => fields.push(String::new()),
            '\\' => fields.last_mut().expect("there is one").extend(characters.next()),
            c => fields.last_mut().expect("there is one").push(c),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_matches_counts() {
        let text = "# a comment\nh:5432:d:u:first\n*:*:*:u:any\\:\\\\one\nlocalhost:*:*:v:socket\nh:1:d:w\n";
        let find = |host, port, user| find_in(text, [host, port, "d", user]);
        assert_eq!(find("h", "5432", "u").as_deref(), Some("first"));
        assert_eq!(find("h", "5433", "u").as_deref(), Some("any:\\one"));
        assert_eq!(find("/tmp", "5432", "v").as_deref(), Some("socket"));
        assert_eq!(find("h", "1", "w"), None);
        assert_eq!(find("h", "1", "x"), None);
    }
}
