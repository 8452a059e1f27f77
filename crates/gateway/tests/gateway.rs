//! Drives the gateway over real sockets, with clients that share no code with it.
//!
//! Each test is a scenario of a Python program in `tests/client`, which checks every frame it sees
//! against the schemas of `docs/schema`. They need Python's `websockets` and `jsonschema`:
//! `GATEWAY_PYTHON` names a Python that has them, by default `python3`. If they are missing, the tests
//! are skipped, with a line on stderr. `GATEWAY_AGUI_1` and `GATEWAY_AGUI_0` name folders in which npm has
//! installed `@ag-ui/client` 1.0 and 0.x, `GATEWAY_WS` one with `ws`. `THREAD_FAULTS=long` makes some of them run longer.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The Python to run the scenarios with; `None` if it lacks what they import.
fn python() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let look = || {
        let name = std::env::var("GATEWAY_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let tried = Command::new(&name).args(["-c", "import websockets.asyncio.client, jsonschema"]).output();
        tried.is_ok_and(|output| output.status.success()).then_some(name)
    };
    FOUND.get_or_init(look).as_deref()
}

/// The directory of the workspace's programs; those of other packages are built if necessary.
fn programs() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = Path::new(env!("CARGO_BIN_EXE_thread-serve")).parent().unwrap();
        if !["thread", "thread-agent", "thread-chat"].iter().all(|name| dir.join(name).is_file()) {
            let mut build = Command::new(env!("CARGO"));
            build.args([
                "build",
                "--quiet",
                "--locked",
                "-p",
                "thread",
                "-p",
                "thread-agent",
                "-p",
                "thread-chat",
            ]);
            let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
            assert!(built.success());
        }
        dir.to_owned()
    })
}

fn scenario(module: &str, name: &str) {
    let Some(python) = python() else {
        eprintln!("SKIPPED {name}: needs a Python with websockets and jsonschema (GATEWAY_PYTHON names it)");
        return;
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = programs();
    let output = Command::new(python)
        .arg(here.join("tests/client").join(module).with_extension("py"))
        .arg(name)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("THREAD_SERVE", env!("CARGO_BIN_EXE_thread-serve"))
        .env("THREAD_PROGRAM", dir.join("thread"))
        .env("THREAD_CHAT", dir.join("thread-chat"))
        .env("DOCS", here.join("../../docs"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    // A scenario prints that it was skipped, or figures.
    eprint!("{}", text(&output.stdout));
}

/// The scenarios that a module defines.
fn defined(module: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client").join(module).with_extension("py");
    let text = std::fs::read_to_string(path).unwrap();
    let names = text.lines().filter_map(|line| line.strip_prefix("async def ")?.strip_suffix("():"));
    names.map(str::to_owned).collect()
}

macro_rules! scenarios {
    ($($module:ident { $($name:ident)* })*) => {
        $(mod $module {
            $(#[test] fn $name() { super::scenario(stringify!($module), stringify!($name)); })*
        })*

        #[test]
        fn every_scenario_is_run() {
            $(assert_eq!(defined(stringify!($module)), [$(stringify!($name)),*]);)*
        }
    };
}

scenarios! {
    protocol {
        a_client_connects_and_learns_the_methods
        requests_are_answered_in_their_order
        a_message_keeps_what_its_client_may_say_about_it
        a_switch_tells_what_is_under_way_and_how_it_failed
        every_event_of_a_run_reaches_every_client
        what_other_programs_say_is_seen_like_anything_else
        parts_go_through_as_parts
        a_resend_is_the_same_event
        queued_messages_are_told_their_position_whenever_it_changes
        a_run_is_cancelled_by_its_name
        a_permission_is_answered_once
        sessions_are_made_listed_named_searched_and_removed
        a_session_that_is_moved_away_is_gone_for_whoever_is_in_it
        history_is_read_page_by_page
        a_switch_with_after_leaves_no_gap_and_no_double
        all_who_enter_at_the_same_moment_hear_what_is_said
        a_client_sees_only_the_session_it_is_in
        commands_are_answered_to_their_sender_alone_and_not_stored
        later_errors_are_responses_and_the_connection_stays
        from_self_survives_a_reconnect
    }
    closing {
        a_bad_beginning_is_answered_where_it_can_be_and_closed
        a_frame_that_is_no_request_ends_a_connection_at_any_time
        a_frame_over_a_mebibyte_is_1009_and_one_below_is_not
        more_than_64_unanswered_requests_are_1008
        a_slow_reader_is_closed_with_1013_and_nobody_else_notices
        one_frame_larger_than_what_may_wait_reaches_everybody
        term_closes_with_1001_and_ends_within_two_seconds
        whoever_is_silent_is_pinged_and_after_a_minute_closed
        a_connection_without_connect_is_closed_after_ten_seconds
        a_search_says_that_two_seconds_were_too_short
    }
    crowd {
        an_answer_streams_from_an_agent_program
        an_agent_is_a_line_of_shell_with_the_limits_that_the_gateway_was_given
        a_now_message_interrupts_and_a_cancel_ends
        a_message_that_is_to_be_resumed_gets_its_turn_again
        a_session_that_is_removed_ends_its_agent
        sub_agents_are_watched_at_work
        twelve_clients_of_three_kinds_and_two_gateways_see_the_same
        a_gateway_that_is_killed_loses_nothing_and_doubles_nothing
    }
    agui {
        a_run_with_reasoning_and_tools_streams_to_both_versions
        a_stream_that_was_cut_is_picked_up_at_its_last_event
        a_killed_adapter_is_a_pause_and_a_final_error_is_an_error
        a_run_that_is_cancelled_is_finished_as_such
        the_same_run_is_one_run_and_bad_input_is_refused
        a_stream_whose_run_is_not_over_never_ends_well
    }
    attachments {
        an_image_goes_round
        an_image_is_sent_by_the_clients_of_both_versions
        an_answer_bears_the_keys_that_clients_look_for
        metadata_of_messages_is_kept_and_handed_on
        a_url_that_is_not_ours_is_refused_wherever_it_is_shown
        what_is_uploaded_is_what_its_bytes_say
    }
    security {
        the_link_sets_a_cookie_and_the_cookie_lets_in
        nobody_comes_in_without_the_token
        other_origins_and_other_names_are_refused
        without_a_token_only_on_a_loopback_address
        a_root_that_vanishes_is_not_made_again_and_loses_nothing
        a_damaged_session_hinders_no_other
        frames_that_make_no_sense_do_no_harm
        figures_are_those_of_the_sessions
    }    s3 {
        what_is_no_storage_is_refused_and_a_build_without_s3_says_how_to_get_one
        attachments_go_to_the_bucket_and_come_back_from_it
        a_store_that_refuses_or_is_gone_is_said_and_nothing_is_taken_for_stored
    }
    load {
        thousands_that_never_connect_are_each_closed_while_a_good_client_talks
        half_of_the_descriptors_are_kept_for_those_who_are_in
        without_descriptors_the_gateway_waits_and_then_goes_on
    }
}
