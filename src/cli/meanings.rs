//! What to suggest for words that other tools have for what `thread` calls differently. Similar spelling would mislead:
//! `rename` is not a slip of `resume`.

/// Words, and the command line that they probably mean.
const MEANINGS: &[(&[&str], &str)] = &[
    (&["create", "new", "make"], "thread init <path>"),
    (
        &["publish", "send", "emit", "produce", "enqueue", "append", "put", "post", "write"],
        "thread push <text>",
    ),
    (&["ingest", "load"], "thread push --batch"),
    (&["read", "show", "get", "cat", "view", "events", "history", "head", "browse"], "thread peek"),
    (&["tail", "follow", "watch", "listen", "stream"], "thread peek --follow"),
    (&["search", "find", "grep", "query", "filter"], "thread peek --filter <sql>"),
    (&["receive", "next", "take", "fetch", "dequeue", "consume", "poll"], "thread pop <consumer>"),
    (&["commit", "done", "acknowledge"], "thread ack <consumer> <id>"),
    (&["replay", "rewind", "reset", "redeliver", "offset"], "thread seek <consumer> beginning"),
    (
        &["consumers", "subscriptions", "subscribers", "subs", "groups", "describe", "stats", "top"],
        "thread info",
    ),
    (&["threads", "queues", "topics", "streams", "inboxes"], "thread ls"),
    (&["set", "update", "edit", "alter"], "thread subscribe <consumer> --replace"),
    (&["start", "run", "daemon"], "thread dispatch --follow"),
    (&["requeue", "redrive", "retry"], "thread dead retry <consumer>"),
    (&["failed", "failures", "errors", "dead-letter"], "thread dead list"),
    (&["purge", "clean", "gc", "trim", "truncate", "compact", "vacuum", "expire"], "thread prune"),
    (&["dump", "snapshot", "copy", "cp"], "thread backup <dir>"),
    (&["check", "verify", "fsck", "repair", "validate"], "thread doctor"),
    (&["migrate", "transfer"], "thread clone <from> <to> --move"),
    (&["continue", "unpause"], "thread resume <consumer>"),
    (&["rename", "move", "mv"], "mv <thread> <new path>"),
    (&["delete", "remove", "rm", "drop", "destroy"], "rm -r <thread>"),
];

/// What a word that is no command probably means: a command line.
pub fn of(word: &str) -> Option<&'static str> {
    MEANINGS.iter().find(|(words, _)| words.contains(&word)).map(|(_, meant)| *meant)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn no_word_is_a_command_or_means_two_things() {
        let words: Vec<&str> = MEANINGS.iter().flat_map(|(words, _)| *words).copied().collect();
        assert_eq!(words.iter().collect::<HashSet<_>>().len(), words.len());
        let program = crate::cli::Cli::command();
        for word in words {
            assert!(program.find_subcommand(word).is_none(), "{word}");
        }
    }
}
