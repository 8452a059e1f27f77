//! What is searched for: words, and phrases in quotes.

/// What begins and ends a phrase.
const QUOTES: [char; 4] = ['"', '“', '”', '„'];

/// Words and phrases in lower case, all of which have to occur.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms(Vec<String>);

impl Terms {
    /// Parses what was typed. Without an end, a phrase goes to the end of the text.
    pub fn of(text: &str) -> Terms {
        let lower = text.to_lowercase();
        let mut terms = Vec::new();
        for (n, part) in lower.split(QUOTES).enumerate() {
            match n % 2 {
                0 => terms.extend(part.split_whitespace().map(str::to_owned)),
                _ => terms.push(part.trim().to_owned()),
            }
        }
        terms.retain(|term| !term.is_empty());
        Terms(terms)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether all are in a text, which is in lower case.
    pub fn are_all_in(&self, lower: &str) -> bool {
        self.iter().all(|term| lower.contains(term))
    }

    /// Removes the terms that are in a text, which is in lower case. Returns whether there were any.
    pub fn remove_those_in(&mut self, lower: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|term| !lower.contains(term.as_str()));
        self.0.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_alone_and_quotes_make_a_phrase() {
        let terms = |text| Terms::of(text).iter().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(terms("  Invoice  MAY "), ["invoice", "may"]);
        assert_eq!(terms("paid \"by Ada\" may"), ["paid", "by ada", "may"]);
        assert_eq!(terms("„der Große“ Ä"), ["der große", "ä"]);
        assert_eq!(terms("one \"not closed"), ["one", "not closed"]);
        assert!(Terms::of(" \"\" \" ").is_empty());
    }

    #[test]
    fn terms_are_in_a_text_whatever_their_order() {
        let mut terms = Terms::of("may \"the invoice\"");
        assert!(terms.are_all_in("the invoice of may") && !terms.are_all_in("an invoice of may"));
        assert!(terms.remove_those_in("an invoice of may") && !terms.remove_those_in("may"));
        assert_eq!(terms, Terms::of("\"the invoice\""));
    }
}
