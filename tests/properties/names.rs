//! Names used in file names and command lines, and durations.

use std::collections::HashMap;

use proptest::prelude::*;
use thread::model::duration;
use thread::model::subscription::ConsumerId;
use thread::run::notifier::{author, slug};

use crate::world::cases;

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn distinct_consumers_have_distinct_safe_file_names(
        ids in prop::collection::vec(prop_oneof!["[aA%._éÉ/ 0-2-]{0,4}", "[a-zA-C%]{100,140}", any::<String>()], 1..20),
        ignores_case in any::<bool>(),
    ) {
        let mut owners = HashMap::new();
        for id in &ids {
            let stem = ConsumerId::stored(id.as_str()).file_stem(ignores_case);
            prop_assert!(!stem.is_empty() && stem.len() <= 200, "{id:?}: {stem}");
            prop_assert!(!stem.starts_with(['.', '_', '-']), "{id:?}: {stem}");
            prop_assert!(stem.bytes().all(|b| b.is_ascii_graphic() && b != b'/'), "{id:?}: {stem}");
            if ConsumerId::new(id).is_ok() && !(ignores_case && id.bytes().any(|b| b.is_ascii_uppercase())) {
                prop_assert_eq!(&stem, id);
            }
            let name = if ignores_case { stem.to_ascii_lowercase() } else { stem.clone() };
            let owner = owners.entry(name).or_insert(id);
            prop_assert_eq!(*owner, id, "both have {}", stem);
        }
    }

    #[test]
    fn a_consumer_id_is_accepted_exactly_by_the_rule(id in prop_oneof!["[aZ0._:@-]{0,4}", "[a-z]{126,131}", ".{0,3}"]) {
        let inside = id.chars().all(|c| c.is_ascii_alphanumeric() || "._-:@".contains(c));
        let first = id.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
        prop_assert_eq!(ConsumerId::new(&id).is_ok(), inside && first && id.len() <= 128);
    }

    #[test]
    fn a_slug_is_at_most_forty_plain_characters(path in prop_oneof!["/[a-z/. ]{0,60}", "(/.{0,30}){0,3}"]) {
        let slug = slug(&path);
        prop_assert!(slug.len() <= 40 && slug.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{slug}");
        prop_assert!(!slug.starts_with('-') || slug.len() == 39, "{slug}");
        let plain = path.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let plain = plain.trim_matches('-');
        if plain.len() <= 40 {
            prop_assert_eq!(slug, plain);
        } else {
            prop_assert_eq!(&slug[..32], &plain[..32]);
            prop_assert_eq!(slug.len(), 39);
        }
    }

    #[test]
    fn an_author_is_a_file_name_of_at_most_a_hundred_bytes(
        source in prop_oneof!["[./-]{1,3}.{0,10}", "[a-z:/é]{1,150}", ".{1,60}"]
    ) {
        let author = author(&source);
        prop_assert!(author.len() <= 100 && !author.is_empty(), "{author}");
        prop_assert!(!author.contains('/') && !author.starts_with(['-', '.']), "{author}");
        // Only these characters and the length change.
        let kept = source.replace('/', "-");
        prop_assert!(kept.get(1..).is_none_or(|rest| rest.starts_with(author.get(1..).unwrap_or_default())));
        prop_assert!(author.len() == kept.len() || author.len() > 96);
    }

    #[test]
    fn durations_are_parsed_back_as_formatted(
        text in prop_oneof!["([0-9]{1,4}(ms|s|m|h|d|w)){1,3}(,[0-9]{1,4}m?s){0,3}", "[0-9a-zµ１. ,-]{0,12}", ".{0,8}"]
    ) {
        if let Ok(durations) = duration::parse_list(&text) {
            prop_assert_eq!(duration::parse_list(&duration::format_list(&durations)), Ok(durations));
        }
        if let (Ok(one), Ok(positive)) = (duration::parse(&text), duration::parse_positive(&text)) {
            prop_assert_eq!(one, positive);
        }
    }
}
