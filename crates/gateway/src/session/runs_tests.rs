use thread::Filter;
use thread::model::filter::Scope;
use thread_conversation::{Message, Priority};
use thread_sessions::events::LARGE;
use thread_sessions::runs::NO_AGENT;
use thread_sessions::{AgentView, open_runs};

use crate::session::fixture::{Fixture, THEM};

#[tokio::test]
async fn the_open_runs_are_read_from_the_agents_cursor_on() {
    let mut fixture = Fixture::new();
    let open = |fixture: &mut Fixture| {
        let (view, runs, upto) = open_runs(&mut fixture.queue).unwrap();
        (view.cursor(), runs.in_order(), upto)
    };
    assert_eq!(open(&mut fixture), (NO_AGENT, vec![], 0));
    let first = fixture.say("a");
    assert_eq!(open(&mut fixture), (NO_AGENT, vec![], first));
    fixture.subscribe(None, Some(first));
    assert_eq!(open(&mut fixture), (first, vec![], first));
    let second = fixture.say("b");
    assert_eq!(open(&mut fixture), (first, vec![second], second));
    let now = fixture.push(&Message { priority: Priority::Now, ..Message::text("n") }.event(THEM).unwrap());
    fixture.begin(second);
    assert_eq!(open(&mut fixture), (first, vec![second, now], now + 1));
    let end = fixture.answer(second, "done");
    assert_eq!(open(&mut fixture), (first, vec![now], end));
    fixture.subscribe(None, Some(0));
    assert_eq!(open(&mut fixture), (0, vec![now, first], end));
}

#[tokio::test]
async fn whether_runs_have_to_be_read_again_is_told() {
    let mut fixture = Fixture::new();
    let mut view = AgentView::default();
    let newest = fixture.say("x");
    assert!(!view.update(&mut fixture.queue).unwrap(), "there is no agent");
    fixture.subscribe(None, Some(newest));
    assert!(view.update(&mut fixture.queue).unwrap() && view.filter().is_none());
    assert!(!view.update(&mut fixture.queue).unwrap(), "it is the same");
    fixture.subscribe(None, Some(0));
    assert!(view.update(&mut fixture.queue).unwrap(), "it was moved back");
    fixture.subscribe(None, Some(newest));
    assert!(!view.update(&mut fixture.queue).unwrap(), "forward is nothing new");
    fixture.subscribe(Some("content = 'x'"), None);
    assert!(view.update(&mut fixture.queue).unwrap() && view.filter().is_some(), "another filter");
    assert!(!view.update(&mut fixture.queue).unwrap());
    fixture.queue.unsubscribe(&crate::agents::seating::consumer()).unwrap();
    assert!(!view.update(&mut fixture.queue).unwrap());
    assert_eq!((view.cursor(), view.filter().is_none()), (NO_AGENT, true));
    fixture.subscribe(Some("content = 'x'"), Some(newest));
    assert!(view.update(&mut fixture.queue).unwrap(), "another agent");
}

#[tokio::test]
async fn a_filter_that_is_broken_selects_nothing() {
    let mut fixture = Fixture::new();
    fixture.subscribe(Some("no_such_column = 1"), Some(0));
    fixture.say("x");
    assert_eq!(open_runs(&mut fixture.queue).unwrap().1.in_order(), [0; 0]);
}

#[tokio::test]
async fn whether_a_long_message_is_for_the_agent_is_known() {
    let mut fixture = Fixture::new();
    let filter = "content <> 'x'";
    fixture.subscribe(Some(filter), Some(0));
    let long = fixture.say("y".repeat(LARGE as usize + 1));
    // As the adapter finds it, which asks the database.
    let filter = Filter::new(filter, Scope::Reading).unwrap().unwrap();
    let is_pending = fixture.queue.newest_matching(Some(&filter), long, 1).unwrap() == [long];
    assert_eq!(open_runs(&mut fixture.queue).unwrap().1.in_order().contains(&long), is_pending);
}
