use proptest::prelude::*;
use thread::NewEvent;
use thread_conversation::{Answer, Message, Record, Run, end_key};

use super::super::path::About;
use super::super::text::normal;
use super::*;

/// A session: what was said, with the answer if there is one.
type Said = Vec<(String, Option<String>)>;

/// The events of a session, as they are stored.
fn path(said: &Said) -> Path {
    let (mut path, mut id) = (Path::default(), 0);
    let mut note = |event: NewEvent<'_>, ends: Option<i64>| {
        id += 1;
        path.note(&Record::of(event.row(id, "2026-03-18T10:30:00.123Z").to_event()), ends);
        id
    };
    for (user, answer) in said {
        let mut other = serde_json::Map::new();
        About::default().put(&mut other);
        let message = Message { other, ..Message::text(user) };
        let of = note(message.event("external:a").unwrap(), None);
        let run = Run { run_id: thread_conversation::run_id_of(of), reply_to: of, attempt: 1, is_own: false };
        note(run.started(), None);
        if let Some(answer) = answer {
            // It is streamed in two pieces, and whole in the end.
            let (first, second) = answer.split_at(answer.floor_char_boundary(answer.len() / 2));
            note(run.token("m", first), None);
            note(run.token("m", second), None);
            let event = run.answer(&Answer { content: answer.clone(), ..Answer::default() });
            assert_eq!(event.idempotency_key, Some(end_key(of)));
            note(event, Some(of));
        }
    }
    path
}

fn brought(said: &Said) -> Vec<Brought> {
    let exchange = |(user, answer): &(String, Option<String>)| Brought {
        user: Some(user.as_str().into()),
        answer: answer.iter().filter(|text| !text.is_empty()).cloned().collect(),
    };
    said.iter().map(exchange).collect()
}

fn found(past: &Said, session: &Said) -> Option<Fit> {
    let path = path(session);
    let whole = |exchange: &Exchange| {
        let at = path.exchanges.iter().position(|one| one == exchange).unwrap();
        normal(session[at].1.as_deref().unwrap_or_default())
    };
    fit(&brought(past), &path, &mut |exchange, beginning| {
        let begins = !beginning.is_empty() && whole(exchange).starts_with(beginning);
        assert!(!begins || exchange.may_begin_with(beginning, false), "the index must not hide a session");
        begins
    })
}

fn said(pairs: &[(&str, &str)]) -> Said {
    pairs.iter().map(|(user, answer)| ((*user).into(), Some((*answer).into()))).collect()
}

#[test]
fn texts_of_the_assistant_decide() {
    let session = said(&[("a", "one"), ("b", "two and a long answer to it"), ("c", "three")]);
    let fits =
        |past: &[(&str, &str)]| found(&said(past), &session).map(|fit| (fit.at, fit.is_end, fit.equal_users));
    assert_eq!(fits(&[("a", "one")]), Some((1, false, 1)));
    assert_eq!(fits(&[("x", " one\n")]), Some((1, false, 0)));
    assert_eq!(
        fits(&[("a", "one"), ("b", "two and a long answer to it"), ("c", "three")]),
        Some((3, true, 3))
    );
    assert_eq!(fits(&[("a", "one"), ("c", "three")]), None);
    assert_eq!(fits(&[("a", "One")]), None);
    // The last may be a beginning; a short one only after the same text of the user.
    assert_eq!(fits(&[("a", "one"), ("b", "two and")]), Some((2, false, 2)));
    assert_eq!(fits(&[("a", "one"), ("x", "two and")]), None);
    assert_eq!(fits(&[("a", "one"), ("x", "two and a long answer to")]), Some((2, false, 1)));
    assert_eq!(fits(&[("a", "on"), ("b", "two and a long answer to it")]), None);
    assert_eq!(fits(&[("a", ""), ("b", "two and a long answer to it")]), None);
}

#[test]
fn what_a_client_has_of_an_answer_is_remembered_once_it_continues() {
    let mut session = path(&said(&[("a", "a long answer")]));
    let mut other = serde_json::Map::new();
    let before = Some(digest(&normal("a lo")));
    About { before, ..About::default() }.put(&mut other);
    let message = Message { other, ..Message::text("b") };
    session.note(&Record::of(message.event("external:a").unwrap().row(9, "").to_event()), None);
    let past = brought(&said(&[("a", "a lo")]));
    let found = fit(&past, &session, &mut |_, _| false).unwrap();
    assert_eq!((found.at, found.is_end, found.beginning), (1, false, None));
    // A copy would have more than the client shows.
    assert!(!found.can_be_copied);
}

#[test]
fn an_answer_stopped_before_it_began_is_continued_only_in_a_named_conversation() {
    let open = path(&vec![("a".into(), None)]);
    let over = path(&said(&[("a", "one")]));
    let fits = |user: &str, path: &Path, is_named: bool| {
        let past = brought(&said(&[(user, "")]));
        fit(&past, path, &mut |exchange, beginning| exchange.may_begin_with(beginning, is_named))
    };
    let found = fits("a", &open, true).unwrap();
    assert_eq!((found.at, found.is_end, found.beginning), (1, true, Some(digest(""))));
    for (user, path, is_named) in [("a", &open, false), ("x", &open, true), ("a", &over, true)] {
        assert_eq!(fits(user, path, is_named), None);
    }
}

/// What people do with a conversation in a chat program before they say something.
#[derive(Debug, Clone)]
enum Act {
    Nothing,
    /// A message is changed: what follows is gone.
    Edit(usize),
    Retry,
    Stop(usize),
    Delete(usize),
    Rewrite(usize, String),
    RewriteUser(usize, String),
    Rename,
}

fn acts() -> impl Strategy<Value = Act> {
    let at = 0..4_usize;
    prop_oneof![
        4 => Just(Act::Nothing),
        1 => at.clone().prop_map(Act::Edit),
        1 => Just(Act::Retry),
        1 => (0..30_usize).prop_map(Act::Stop),
        1 => at.clone().prop_map(Act::Delete),
        1 => (at.clone(), "[ab ]{0,3}").prop_map(|(at, text)| Act::Rewrite(at, text)),
        1 => (at, "[ab ]{0,3}").prop_map(|(at, text)| Act::RewriteUser(at, text)),
        1 => Just(Act::Rename),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Several chats, whose texts are often the same, over a gateway that finds sessions as [`begin`] does.
    ///
    /// [`begin`]: super::super::begin
    #[test]
    fn the_agent_never_has_another_conversation_than_the_client_shows(
        turns in proptest::collection::vec((0..3_usize, acts(), "[ab]", "[ab]{1,2}( long enough to be sure of it)?"), 1..16),
    ) {
        let mut chats: [Said; 3] = Default::default();
        let mut sessions: Vec<Said> = Vec::new();
        for (chat, act, user, answer) in turns {
            let chat = &mut chats[chat];
            let at = |at: usize| at % chat.len().max(1);
            match act {
                Act::Edit(n) => chat.truncate(at(n)),
                Act::Retry => drop(chat.pop()),
                Act::Delete(n) if !chat.is_empty() => drop(chat.remove(at(n))),
                Act::Stop(length) => {
                    if let Some((_, Some(text))) = chat.last_mut() {
                        text.truncate(length);
                    }
                }
                Act::Rewrite(n, text) if !chat.is_empty() => {
                    let n = at(n);
                    chat[n].1 = Some(text);
                }
                Act::RewriteUser(n, text) if !chat.is_empty() => {
                    let n = at(n);
                    chat[n].0 = text;
                }
                _ => {}
            }
            let mut fits: Vec<(usize, Fit)> = (0..sessions.len())
                .filter_map(|n| Some((n, found(chat, &sessions[n])?)))
                .filter(|_| !chat.is_empty())
                .collect();
            fits.sort_by_key(|(_, fit)| std::cmp::Reverse(fit.rank(true)));
            let session = match fits.first() {
                Some((n, fit)) if fit.is_end => *n,
                Some((n, fit)) if fit.can_be_copied => {
                    sessions.push(sessions[*n][..fit.at].to_vec());
                    sessions.len() - 1
                }
                _ => {
                    sessions.push(chat.clone());
                    sessions.len() - 1
                }
            };
            let has = &sessions[session];
            prop_assert_eq!(has.len(), chat.len());
            for (n, (there, here)) in has.iter().zip(chat.iter()).enumerate() {
                let (there, here) = (normal(there.1.as_deref().unwrap_or_default()), normal(here.1.as_deref().unwrap_or_default()));
                let is_cut = n + 1 == chat.len() && !here.is_empty() && there.starts_with(&here);
                prop_assert!(there == here || is_cut, "{there:?} is not {here:?}");
            }
            sessions[session].push((user.clone(), Some(answer.clone())));
            chat.push((user, Some(answer)));
        }
    }
}
