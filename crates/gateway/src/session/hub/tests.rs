use super::*;
use crate::session::cursor::{Cursor, Next};
use crate::session::fixture::{Fixture, LIMIT, drain, event};

fn hub(fixture: &Fixture) -> Hub {
    Hub { context: fixture.context.clone(), all: Mutex::default() }
}

#[tokio::test]
async fn all_who_enter_a_session_read_it_through_one_task() {
    let mut fixture = Fixture::new();
    let hub = hub(&fixture);
    assert!(hub.live(fixture.session).is_none() && hub.everything().is_empty());
    let (a, b) = tokio::join!(hub.enter(fixture.session), hub.enter(fixture.session));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert!(Arc::ptr_eq(&a, &b) && Arc::ptr_eq(&a, &hub.enter(fixture.session).await.unwrap()));
    assert_eq!(hub.everything().len(), 1);
    let mut cursor = Cursor::new(a, 0);
    drain(&mut cursor).await;
    let id = fixture.say("x");
    // Its task reads on by itself, now and after it was told that there is nothing new.
    while cursor.position() < id {
        drop(tokio::time::timeout(LIMIT, cursor.next()).await.expect("the task notices"));
    }
    drop((cursor, b));
    // The task may be about to look once more.
    let left = async {
        while hub.live(fixture.session).is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, left).await.expect("nobody reads it");
    assert!(hub.everything().is_empty());
    assert_eq!(event(&mut Cursor::new(hub.enter(fixture.session).await.unwrap(), 0)).await.id(), id);
}

#[tokio::test]
async fn a_session_that_was_removed_is_not_entered_again() {
    let fixture = Fixture::new();
    let hub = hub(&fixture);
    let live = hub.enter(fixture.session).await.unwrap();
    let mut cursor = Cursor::new(live.clone(), 0);
    fixture.remove();
    // Its task notices without being told.
    let gone = async { while !matches!(cursor.next().await, Next::Gone) {} };
    tokio::time::timeout(LIMIT, gone).await.expect("the task notices");
    assert!(live.is_gone() && hub.live(fixture.session).is_none());
    let again = hub.enter(fixture.session).await;
    assert!(matches!(again, Err(RequestError::UnknownSession(id)) if id == fixture.session.to_string()));
    let never = hub.enter(SessionId::random()).await;
    assert!(matches!(never, Err(RequestError::UnknownSession(_))));
}
