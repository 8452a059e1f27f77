//! Bars, one inside of the other, as they are found.

use serde_json::Value;
use thread::model::time::{self, Time};

use super::super::dto::{Bar, BarKind};

/// The longest label, in characters.
pub const LABEL: usize = 120;

pub struct Tree {
    /// When the event was stored.
    began: Time,
    /// Each with the one that it is inside of, which comes before it.
    bars: Vec<(Option<usize>, Bar)>,
}

impl Tree {
    pub fn since(began: Time) -> Tree {
        Tree { began, bars: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.bars.len()
    }

    /// In milliseconds since the event was stored.
    pub fn ms(&self, at: Time) -> i64 {
        (at - self.began).num_milliseconds()
    }

    /// The same of a time as it is stored.
    pub fn at(&self, stored: &str) -> i64 {
        time::parse(stored).map_or(0, |at| self.ms(at))
    }

    /// Adds a bar that takes no time. Returns its index.
    pub fn add(&mut self, inside: Option<usize>, kind: BarKind, at_ms: i64, label: &str) -> usize {
        let bar = Bar {
            kind,
            depth: 0,
            at_ms,
            duration_ms: None,
            is_open: false,
            label: short(label),
            given: None,
            ended: None,
            event: None,
            end_event: None,
            call: None,
            consumer: None,
            run: None,
            thread: None,
        };
        self.bars.push((inside, bar));
        self.bars.len() - 1
    }

    /// The same of one that has not ended.
    pub fn open(&mut self, inside: Option<usize>, kind: BarKind, at_ms: i64, label: &str) -> usize {
        let bar = self.add(inside, kind, at_ms, label);
        self.bars[bar].1.is_open = true;
        bar
    }

    pub fn bar(&mut self, bar: usize) -> &mut Bar {
        &mut self.bars[bar].1
    }

    pub fn end(&mut self, bar: usize, at_ms: i64) {
        let bar = &mut self.bars[bar].1;
        bar.duration_ms = Some(u64::try_from(at_ms - bar.at_ms).unwrap_or(0));
        bar.is_open = false;
    }

    /// What is open inside of a bar, and inside of that, the innermost first.
    pub fn open_inside(&self, outer: usize) -> Vec<usize> {
        let is_inside = |mut bar: usize| {
            loop {
                match self.bars[bar].0 {
                    Some(inside) if inside == outer => return true,
                    Some(inside) => bar = inside,
                    None => return false,
                }
            }
        };
        (outer + 1..self.bars.len())
            .rev()
            .filter(|bar| self.bars[*bar].1.is_open && is_inside(*bar))
            .collect()
    }

    /// Puts bars inside of another, a later one.
    pub fn move_into(&mut self, outer: usize, bars: &[usize]) {
        for bar in bars {
            self.bars[*bar].0 = Some(outer);
        }
    }

    /// Takes back all bars from this one on.
    pub fn forget(&mut self, from: usize) {
        self.bars.truncate(from);
    }

    /// The bars in the order in which they are shown.
    pub fn flattened(self) -> Vec<Bar> {
        let mut inside: Vec<Vec<usize>> = vec![Vec::new(); self.bars.len()];
        let mut stack = Vec::new();
        for (n, (outer, _)) in self.bars.iter().enumerate() {
            match outer {
                Some(outer) => inside[*outer].push(n),
                None => stack.push((n, 0)),
            }
        }
        let key = |n: usize| self.bars[n].1.at_ms;
        stack.sort_by_key(|(n, _)| key(*n));
        stack.reverse();
        let mut all = Vec::with_capacity(self.bars.len());
        while let Some((n, depth)) = stack.pop() {
            all.push(Bar { depth, ..self.bars[n].1.clone() });
            let mut inner = std::mem::take(&mut inside[n]);
            inner.sort_by_key(|n| key(*n));
            stack.extend(inner.into_iter().rev().map(|n| (n, depth + 1)));
        }
        all
    }
}

/// A label that is not too long, in one line.
pub fn short(text: &str) -> String {
    // Long enough to be cut below, and no work for long texts.
    let beginning: String = text.chars().take(4 * LABEL).collect();
    let line = beginning.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LABEL) {
        Some(_) => line.chars().take(LABEL - 1).chain(['…']).collect(),
        None => line,
    }
}

/// The arguments of a tool in a few words, without repeating its name.
pub fn gist(arguments: &Value, name: &str) -> Option<String> {
    let word = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let text = match arguments {
        Value::Null => return None,
        Value::Object(fields) => {
            let words: Vec<String> = fields.values().filter_map(word).collect();
            match words.is_empty() && !fields.is_empty() {
                true => arguments.to_string(),
                false => words.into_iter().filter(|word| word != name).collect::<Vec<_>>().join(" "),
            }
        }
        other => word(other).unwrap_or_else(|| other.to_string()),
    };
    let line = short(&text);
    (!line.is_empty() && line != name).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_followed_by_those_inside_of_them() {
        let mut tree = Tree::since(Time::default());
        let outer = tree.open(None, BarKind::Attempt, 0, "a");
        let text = tree.add(Some(outer), BarKind::Text, 20, "b\n c");
        let early = tree.open(Some(outer), BarKind::Tool, 10, &"x".repeat(200));
        let model = tree.add(Some(outer), BarKind::Model, 15, "m");
        tree.open(Some(early), BarKind::Permission, 12, "may I?");
        assert_eq!(tree.open_inside(outer), [4, early]);
        tree.move_into(model, &[text]);
        tree.end(early, 30);
        let shown = tree.flattened();
        let seen: Vec<_> = shown.iter().map(|bar| (bar.kind, bar.depth)).collect();
        let kinds = [BarKind::Attempt, BarKind::Tool, BarKind::Permission, BarKind::Model, BarKind::Text];
        assert_eq!(seen, kinds.into_iter().zip([0, 1, 2, 1, 2]).collect::<Vec<_>>());
        assert_eq!((shown[1].duration_ms, shown[1].label.chars().count()), (Some(20), LABEL));
        assert_eq!(shown[4].label, "b c");
    }
}
