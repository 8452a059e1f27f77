//! Where events finish singly: claims, failures and ends of each.

use crate::model::{Consumer, Kind, Letter, Phase, Wait};
use crate::rules::{Action, Allowed, is_same_time, letter};

fn only_if(condition: bool, what: &'static str) -> Allowed {
    if condition { Ok(()) } else { Err(what) }
}

pub fn apply(c: &mut Consumer, action: &Action) -> Allowed {
    only_if(c.options.kind.is_singly(), "events finish together")?;
    match action {
        Action::Claims(id, claim) => {
            only_if(!c.claims.contains_key(id), "it is claimed already")?;
            only_if(c.events.contains_key(id), "it is not to have that event")?;
            if claim.is_letter {
                only_if(letter(c, *id)?.retry, "that dead letter is not to be retried")?;
            } else {
                only_if(!c.is_done(*id), "it is finished already")?;
                let is_over = c.waits.get(id).is_none_or(|wait| wait.until <= claim.since + 1000);
                only_if(is_over, "it waits")?;
                only_if(
                    !c.open().any(|other| other < *id && is_same_key(c, *id, other)),
                    "an older one of its key is unfinished",
                )?;
            }
            only_if(!c.claims.keys().any(|other| is_same_key(c, *id, *other)), "one of its key is claimed")?;
            let of_place = c.claims.values().filter(|other| other.place == claim.place);
            match c.options.kind {
                Kind::Pool => {
                    only_if(c.state.phase == Phase::Running, "nobody is at work")?;
                    only_if((1..=c.options.places).contains(&claim.place), "there is no such place")?;
                    only_if(claim.token.is_none(), "a run has no token")?;
                    let others: Vec<_> = of_place.collect();
                    only_if((others.len() as i64) < c.options.batch, "so many events at once")?;
                    only_if(others.iter().all(|other| other.since == claim.since), "the place is taken")?;
                }
                _ => {
                    only_if(claim.place == 0 && claim.token.is_some(), "a program has a token")?;
                    only_if((c.claims.len() as i64) < c.options.places, "no place is free")?;
                    only_if(!c.state.paused, "it is paused")?;
                    let token = claim.token.as_ref().map(|(token, _)| token);
                    let is_new =
                        !c.claims.values().any(|other| other.token.as_ref().map(|(t, _)| t) == token);
                    only_if(is_new, "a token is used twice")?;
                }
            }
            c.claims.insert(*id, claim.clone());
        }
        Action::GivesBack(id) => {
            let claim = c.claims.remove(id).ok_or("nobody has it")?;
            only_if(claim.token.is_none() || claim.is_letter, "a program has it")?;
        }
        Action::Prolongs(id, until) => {
            let claim = c.claims.get_mut(id).ok_or("nobody has it")?;
            let (_, end) = claim.token.as_mut().ok_or("a run has it")?;
            *end = *until;
        }
        Action::Finishes(id) => {
            only_if(c.events.contains_key(id) && !c.is_done(*id), "it is finished already")?;
            finish(c, *id);
        }
        Action::Fails(id, wait) => {
            let before = given(c, *id)?;
            only_if(wait.attempts == before.attempts + 1 && wait.deferred == 0, "so many attempts")?;
            only_if(c.options.attempts.is_none_or(|most| wait.attempts <= most), "it is out of attempts")?;
            put_off(c, *id, *wait)?;
        }
        Action::AsKnown(id, wait) => {
            given(c, *id)?;
            only_if(c.options.kind != Kind::Claims, "a program has no supervisor")?;
            only_if(c.options.attempts.is_none_or(|most| wait.attempts <= most), "it is out of attempts")?;
            put_off(c, *id, *wait)?;
        }
        Action::PutsOff(id, wait) => {
            let before = given(c, *id)?;
            only_if(wait.attempts == before.attempts, "so many attempts")?;
            only_if(wait.deferred == before.deferred + 1, "so often deferred")?;
            put_off(c, *id, *wait)?;
        }
        Action::SetsApart(id, wait) => {
            let before = given(c, *id)?;
            only_if(c.options.kind == Kind::Pool && c.claims.contains_key(id), "no run had it")?;
            only_if(wait.attempts == before.attempts && wait.deferred == 0, "so many attempts")?;
            put_off(c, *id, *wait)?;
        }
        Action::Buries(id) => {
            let before = given(c, *id)?;
            bury(c, *id, before.attempts + 1);
        }
        Action::BuriesAsKnown(id, attempts) => {
            given(c, *id)?;
            only_if(c.options.kind != Kind::Claims, "a program has no supervisor")?;
            bury(c, *id, *attempts);
        }
        Action::ByHand(id, action) => {
            let claim = c.claims.get(id).cloned().ok_or("nobody has it")?;
            apply(c, action)?;
            c.claims.insert(*id, claim);
        }
        Action::LetterDone(id) => {
            only_if(letter(c, *id)?.retry, "that dead letter is not to be retried")?;
            c.letters.remove(id);
            c.claims.remove(id);
        }
        Action::LetterFails(id) => {
            let letter = letter(c, *id)?;
            only_if(letter.retry, "that dead letter is not to be retried")?;
            *letter = Letter { attempts: letter.attempts + 1, retry: false };
            c.claims.remove(id);
        }
        _ => return Err("that is no action on an event"),
    }
    Ok(())
}

/// What is known of the attempts at an event that is not finished.
fn given(c: &Consumer, id: i64) -> Result<Wait, &'static str> {
    only_if(c.events.contains_key(&id) && !c.is_done(id), "it is finished already")?;
    Ok(c.waits.get(&id).copied().unwrap_or_default())
}

fn bury(c: &mut Consumer, id: i64, attempts: i64) {
    c.letters.insert(id, Letter { attempts, retry: false });
    c.state.dead += 1;
    finish(c, id);
}

fn put_off(c: &mut Consumer, id: i64, wait: Wait) -> Allowed {
    only_if(wait.since <= wait.until || is_same_time(wait.since, wait.until), "it waits backwards")?;
    c.claims.remove(&id);
    c.waits.insert(id, wait);
    Ok(())
}

fn is_same_key(c: &Consumer, one: i64, other: i64) -> bool {
    let key = |id: i64| c.events.get(&id).and_then(|event| event.key.as_ref());
    one != other && key(one).is_some() && key(one) == key(other)
}

/// Nobody has it any more, and the cursor moves as far as it can.
pub fn finish(c: &mut Consumer, id: i64) {
    c.waits.remove(&id);
    if !c.claims.get(&id).is_some_and(|claim| claim.is_letter) {
        c.claims.remove(&id);
    }
    c.done.insert(id);
    let next = c.open().next().unwrap_or(i64::MAX);
    let last = c.events.range(..next).next_back().map_or(0, |(id, _)| *id);
    c.cursor = c.cursor.max(last);
    c.done.retain(|id| *id > last);
}
