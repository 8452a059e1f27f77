//! Drives the gateway over real sockets, with clients that share no code with it.
//!
//! Each test is a scenario of a Python program in `tests/client`, which checks every frame it sees against the schemas
//! of `docs/schema`, and every answer of the interface for threads against its description. The clients, those of
//! Python and those of npm, are installed by `thread-testkit` when a scenario first needs them. The browser is
//! Chromium, driven by Python's `playwright`, and Firefox, driven by npm's `puppeteer-core`; proxies are nginx and Caddy,
//! with openssl. A scenario that lacks one of them is skipped and counted; if `CI` is set, it fails.
//! `THREAD_FAULTS=long` makes some of them run longer. Tests that need nothing but this workspace are in `plain`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use thread_testkit::{clients, long, missing, program};

/// The npm packages that the scenarios use, and the variable that names the folder of each.
const NPM: [(&str, &str); 11] = [
    ("acp", "GATEWAY_ACP"),
    ("agui-0", "GATEWAY_AGUI_0"),
    ("agui-1", "GATEWAY_AGUI_1"),
    ("axe", "GATEWAY_AXE"),
    ("copilotkit", "GATEWAY_COPILOTKIT"),
    ("mcp", "THREAD_TEST_MCP"),
    ("mcp-next", "THREAD_TEST_MCP_NEXT"),
    ("openai", "GATEWAY_OPENAI"),
    ("puppeteer", "GATEWAY_PUPPETEER"),
    ("telegram", "GATEWAY_TELEGRAM"),
    ("ws", "GATEWAY_WS"),
];

/// The variables of [`NPM`]. Scenarios report themselves what they need and do not have.
fn npm() -> &'static [(&'static str, Result<PathBuf, String>)] {
    static FOUND: OnceLock<Vec<(&str, Result<PathBuf, String>)>> = OnceLock::new();
    FOUND.get_or_init(|| {
        // Installed at the same time.
        std::thread::scope(|scope| {
            let found = NPM.map(|(packages, variable)| (variable, scope.spawn(|| clients::npm(packages))));
            found.map(|(variable, found)| (variable, found.join().unwrap())).into()
        })
    })
}

fn scenario(module: &str, name: &str) {
    let python = match clients::python() {
        Ok(python) => python,
        Err(needs) => return missing(needs),
    };
    program("thread-agent");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python);
    command
        .arg(here.join("tests/client").join(module).with_extension("py"))
        .arg(name)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("THREAD_SERVE", env!("CARGO_BIN_EXE_thread-serve"))
        .env("THREAD_PROGRAM", program("thread"))
        .env("THREAD_ACP", program("thread-acp"))
        .env("THREAD_CHAT", program("thread-chat"))
        .env("DOCS", here.join("../../docs"));
    for (variable, folder) in npm() {
        match folder {
            Ok(folder) => command.env(variable, folder),
            Err(_) => command.env_remove(variable),
        };
    }
    let output = run_to_its_end(&mut command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    // A scenario prints figures, or why it was skipped in part or as a whole.
    for line in text(&output.stdout).lines() {
        match line.strip_prefix("SKIPPED: needs ") {
            Some(needs) => missing(needs),
            None => eprintln!("{line}"),
        }
    }
}

/// Runs a scenario. If it takes far too long, it is interrupted, so that it prints where it is.
fn run_to_its_end(command: &mut Command) -> Output {
    let limit = Duration::from_secs(if long() { 7200 } else { 900 });
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    for (signal, limit) in [("-INT", limit), ("-KILL", Duration::from_secs(60))] {
        if let Ok(output) = ended.recv_timeout(limit) {
            return output.unwrap();
        }
        Command::new("kill").args([signal, &pid]).status().unwrap();
    }
    panic!("it does not end");
}

/// The scenarios that a module defines.
fn defined(module: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client").join(module).with_extension("py");
    let text = std::fs::read_to_string(path).unwrap();
    let names = text.lines().filter_map(|line| line.strip_prefix("async def ")?.strip_suffix("():"));
    names.map(str::to_owned).collect()
}

macro_rules! scenarios {
    ($($module:ident { $($(#[$about:meta])* $name:ident)* })*) => {
        $(mod $module {
            $($(#[$about])* #[test] fn $name() { super::scenario(stringify!($module), stringify!($name)); })*
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
        a_message_is_sent_later
        a_switch_reports_what_is_under_way_and_how_it_failed
        every_event_of_a_run_reaches_every_client
        what_other_programs_say_is_seen_like_anything_else
        parts_go_through_as_parts
        a_resend_is_the_same_event
        senders_of_queued_messages_get_each_new_position
        a_run_is_cancelled_by_its_name
        a_permission_is_answered_once
        sessions_are_made_listed_named_searched_and_removed
        a_session_that_is_moved_away_is_gone_for_its_clients
        history_is_read_page_by_page
        the_steps_of_runs_are_read_page_by_page
        what_the_agent_says_is_not_divided_by_what_others_do
        the_list_says_what_a_session_needs
        nothing_is_before_the_beginning
        a_switch_with_after_leaves_no_gap_and_no_double
        all_clients_that_enter_at_the_same_moment_get_the_events
        a_client_sees_only_the_session_it_is_in
        commands_are_answered_to_their_sender_alone_and_not_stored
        later_errors_are_responses_and_the_connection_stays
        from_self_survives_a_reconnect
    }
    entering {
        at_any_point_of_a_run_it_is_seen_from_its_beginning
        events_that_come_while_a_client_enters_are_neither_lost_nor_doubled
        a_stream_that_is_resumed_during_its_run_is_whole
    }
    endings {
        what_an_agent_says_by_the_way_ends_nothing
        an_ag_ui_stream_continues_to_the_answer
        only_the_key_makes_an_ending
    }
    unasked {
        what_an_agent_says_unasked_is_seen_by_everybody_and_kept
        a_clear_keeps_the_conversation_and_the_agent_forgets_it
        a_call_shows_its_tool_its_title_and_its_change
        a_gateway_restarts_a_sub_agent_whose_processes_were_all_killed
    }
    closing {
        a_bad_beginning_is_answered_where_it_can_be_and_closed
        a_frame_that_is_no_request_ends_a_connection_at_any_time
        a_frame_over_a_mebibyte_is_1009_and_one_below_is_not
        a_client_that_sends_far_too_much_can_read_why_it_is_closed
        more_than_64_unanswered_requests_are_1008
        a_reader_that_stops_for_a_minute_continues_and_misses_nothing
        an_ending_of_any_size_reaches_everybody_whole
        a_client_that_closes_is_answered
        term_closes_with_1001_and_ends_within_two_seconds
        a_silent_client_is_pinged_and_after_a_minute_closed
        a_connection_without_connect_is_closed_after_ten_seconds
        a_search_says_that_two_seconds_were_too_short
    }
    limits {
        an_event_over_a_mebibyte_is_a_placeholder_whose_url_has_the_whole
        an_answer_of_any_size_is_whole_in_history
        an_answer_that_is_nested_too_deep_is_text
        thread_chat_gets_an_answer_of_any_depth
        a_session_with_a_gigantic_event_is_entered_in_little_memory
    }
    isolation {
        a_session_whose_writers_wait_delays_no_other_session
        three_broken_sessions_affect_no_other
        readers_that_have_stopped_cost_nothing_and_miss_nothing
    }
    sessions {
        everybody_in_a_session_knows_how_many_are
        messages_that_wait_in_one_session_are_not_shown_in_another
        a_cancel_in_one_session_leaves_another_alone
        two_gateways_on_one_root_are_as_good_as_one
        a_gateway_that_stops_leaves_the_address_of_another
        a_fork_has_what_was_said_and_answers_none_of_it_again
        a_fork_keeps_the_answers_of_messages_that_were_queued
        a_fork_has_what_was_said_before_an_answer_was_stopped
        what_is_copied_keeps_its_time
        a_deletion_is_finished_although_its_gateway_was_killed
        the_stream_of_a_run_that_ended_is_deleted_and_nothing_else
        a_session_without_new_events_is_not_swept_again
    }
    editors {
        an_editor_talks_sees_tools_and_finds_its_sessions
        permission_is_given_refused_cancelled_and_given_elsewhere
        whatever_is_cut_off_the_transcript_is_the_same
        an_editor_that_comes_back_finds_what_happened_and_is_asked_at_its_next_prompt
        agents_are_modes_and_a_directory_counts_where_it_may
        what_the_agent_lets_people_choose_can_be_chosen_in_the_editor
        what_was_chosen_holds_for_each_process_of_the_agent_and_wherever_the_editor_is_cut_off
        an_editors_mcp_servers_reach_the_agent_that_may_have_them
        a_failed_run_is_an_error_and_what_cannot_be_reached_is_said
        images_in_a_prompt_reach_the_agent
        an_editor_that_sends_nonsense_is_told_and_served
        the_npm_package_talks_is_asked_and_loads
    }
    agents {
        sessions_choose_among_the_agents_of_a_file
        an_agent_behind_ag_ui_answers
        a_file_with_mistakes_is_refused_by_file_table_and_key
        a_session_is_moved_to_another_agent_which_knows_what_was_said
        a_move_is_done_or_not_begun_whatever_is_killed
        the_agent_stores_the_move_if_the_gateway_was_killed_before_it_could
        with_agent_for_all_a_session_keeps_its_agent_and_gets_the_options_of_today
    }
    watching {
        a_bot_loses_no_answer_when_it_speaks_in_the_next_session
        answers_that_come_while_the_gateway_is_dead_are_heard_once
        all_sessions_are_heard_and_those_that_are_made_later
        entering_a_session_that_is_heard_leaves_no_gap
        a_reader_that_has_stopped_is_behind_in_all_and_costs_little
    }
    spending {
        what_agents_take_is_in_answers_figures_and_the_status
        a_message_over_the_budget_gets_an_error_that_says_how_to_go_on
    }
    strangers {
        before_connect_frames_are_small
        unfinished_frames_of_strangers_take_no_memory
        unauthenticated_clients_take_no_place_of_others
        the_oldest_stranger_goes_first
        one_address_cannot_have_all_that_strangers_have
        a_body_that_drips_in_is_not_waited_for
    }
    crowd {
        an_answer_streams_from_an_agent_program
        an_agent_is_a_line_of_shell_with_the_limits_that_the_gateway_was_given
        agents_get_the_options_that_the_gateway_was_given
        a_now_message_interrupts_and_a_cancel_ends
        a_message_that_is_to_be_resumed_gets_its_turn_again
        a_session_that_is_removed_ends_its_agent
        sub_agents_are_watched_at_work
        what_a_sub_agent_said_is_not_said_again
        twelve_clients_of_three_kinds_and_two_gateways_see_the_same
        runs_interrupted_by_a_reboot_continue_by_themselves
        whichever_process_is_killed_each_message_ends_once_and_all_clients_see_the_same
    }
    reboots {
        running_waiting_and_asking_runs_survive_a_reboot
    }
    endurance {
        forty_sessions_share_three_agents
        in_a_long_conversation_nothing_piles_up_and_each_message_ends_once
    }
    agui {
        a_run_with_reasoning_and_tools_streams_to_both_versions
        a_stream_that_was_cut_is_resumed_at_its_last_event
        a_killed_adapter_is_a_pause_and_a_final_error_is_an_error
        a_run_that_is_cancelled_is_finished_as_such
        the_same_run_is_one_run_and_bad_input_is_refused
        ids_that_only_look_alike_when_joined_are_different
        a_stream_whose_run_is_not_over_never_ends_well
    }
    answers {
        a_permission_is_an_interrupt_and_a_resume_shows_the_rest
        somebody_else_may_answer_first
        other_clients_see_what_comes_after_an_interrupt
        a_call_of_a_clients_tool_ends_the_stream_and_its_result_continues_the_run
        a_client_that_says_something_else_gives_its_call_an_error
        a_call_without_a_result_gets_an_error_after_ten_minutes
        a_call_of_a_later_attempt_is_told_apart
        a_client_stops_a_run_by_name_and_by_leaving
        a_cancel_by_the_name_of_a_resumed_run_ends_the_original
        input_of_a_client_reaches_the_agent_or_is_reported
        a_context_is_a_block_for_agents_of_the_client_protocol
        a_position_in_the_queue_is_reported
    }
    mcp_http {
        clients_use_every_tool_in_both_generations
        token_origin_and_host_are_asked_for_as_everywhere
        who_is_refused_before_its_body_was_read_is_told_that_the_connection_ends
        an_id_of_a_session_is_of_no_use_to_another
        a_request_that_is_cancelled_ends_its_work
        fifty_wait_at_once_and_some_go_away
        a_gateway_that_ends_takes_no_sub_agent_with_it
        of_sessions_that_are_left_the_oldest_end
        fifty_clients_call_at_random_and_memory_stays
        the_conformance_suite_passes
    }
    conformance {
        whatever_an_agent_does_is_a_valid_stream
        cancels_interrupts_and_resumed_streams_are_valid
        a_stream_is_whole_wherever_it_is_resumed
        a_stream_that_continues_a_run_is_whole_wherever_it_is_resumed
        answers_with_content_parts_are_valid
        the_released_clients_answer_interrupts_and_calls
    }
    openai_api {
        a_completion_is_whole_or_a_stream
        what_cannot_be_done_is_an_error_that_says_so
        a_conversation_is_continued_and_a_change_of_it_is_a_copy
        a_header_names_the_conversation
        a_client_that_stops_reading_continues_from_what_it_has
        a_retry_joins_the_run
        a_failed_run_is_an_error_and_is_not_sent_again
        tools_of_the_client_are_called_and_answered
        a_file_in_a_message_reaches_the_agent
        a_permission_is_reasoning_with_a_link_and_waits
        responses_are_read_followed_and_continued
        a_background_response_is_read_later_and_cancelled
        a_stream_continues_wherever_it_was_cut
        ten_requests_are_queued_everything_is_killed_and_ten_are_answered
        whatever_is_edited_the_agent_has_the_conversation_that_is_shown
        titles_are_for_the_task_model_in_a_session_that_no_list_has
        the_agent_that_a_request_names_answers_it
        the_example_of_the_documentation_gets_an_answer
        the_npm_client_streams_calls_and_continues
    }
    chat_programs {
        what_open_webui_sends_ends_in_the_conversation_that_it_shows
        what_librechat_sends_ends_in_the_conversation_that_it_shows
    }
    copilotkit {
        text_comes_through
        a_tool_of_the_client_is_called_and_answered
        its_stop_ends_the_run
        a_permission_is_given
    }
    attachments {
        an_image_goes_round
        an_image_is_sent_by_the_clients_of_both_versions
        a_socket_refuses_files_that_are_none_and_makes_no_session
        an_answer_bears_the_keys_that_clients_look_for
        metadata_of_messages_is_kept_and_passed_on
        a_url_that_is_not_ours_is_refused_wherever_it_is_shown
        only_what_a_client_has_uploaded_is_signed
        an_attachment_goes_with_the_last_session_that_shows_it
        a_file_that_could_not_be_stored_can_be_sent_again
        many_send_the_same_file_at_once
        what_has_had_no_session_for_a_day_is_deleted
        what_is_uploaded_is_what_its_bytes_say
    }
    security {
        the_page_exchanges_the_token_for_a_cookie_and_the_cookie_lets_in
        a_login_has_a_value_of_its_own_and_ends_when_it_is_logged_out
        another_token_counts_at_once
        nothing_works_without_the_token
        other_origins_and_other_names_are_refused
        pages_of_a_named_origin_need_the_token_and_get_no_cookies
        the_public_url_is_where_clients_come
        every_error_over_http_is_json
        without_a_token_only_on_a_loopback_address
        a_root_that_vanishes_is_not_recreated_and_loses_nothing
        a_damaged_session_hinders_no_other
        a_root_that_others_may_write_is_refused
        sessions_are_private
        frames_that_make_no_sense_do_no_harm
        figures_are_those_of_the_sessions
    }
    log {
        a_run_is_logged_when_it_begins_and_ends_and_nothing_that_is_said
        what_was_due_when_the_gateway_was_started_is_logged
        the_level_says_how_much_is_logged
    }
    threads {
        every_thread_is_in_the_list_and_those_that_are_named_are_not_served
        a_stalled_consumer_is_found_and_resumed
        dead_letters_are_retried_by_reason_and_some_are_discarded
        steps_are_seen_and_forgotten_and_an_event_of_a_pool_is_tried_at_once
        dead_letters_of_kept_handlers_are_retried
        a_cursor_is_moved_and_what_follows_is_handled_again
        a_running_handler_is_stopped
        a_run_has_its_output_and_an_event_what_became_of_it
        events_are_browsed_from_the_newest_on
        an_event_is_stored_once_and_only_if_it_is_one
        what_is_scheduled_is_cancelled_or_made_an_event_now
        a_live_tail_continues_after_it_was_cut
        a_slow_filter_is_cut_off_and_delays_no_other_request
        read_only_allows_only_reading
        strangers_and_hostile_ids_get_nowhere
        a_locked_and_a_damaged_thread_make_no_other_wait
        fifty_watching_clients_cost_one_look_a_second
        thousands_of_sessions_are_listed_without_being_opened
        a_thread_that_cannot_be_shown_is_reported_at_the_start
    }
    description {
        made_up_requests_get_answers_that_are_described
    }
    page {
        an_answer_streams_with_its_thinking_and_its_tools
        steps_with_code_between_them_stay_steps
        what_was_done_is_there_after_a_reload
        two_browsers_in_one_session_see_the_same
        sub_agents_stand_with_the_call_they_work_for
        permission_is_read_whole_and_given
        a_call_without_a_result_is_no_error
        what_was_said_between_tools_stands_there_after_a_reload
        the_events_of_a_run_lead_to_look_and_back
        events_of_a_message_are_its_own
        a_waiting_message_shows_it_and_can_be_withdrawn_or_hurried
        an_agent_is_chosen_for_a_session_and_changed_later
        a_message_is_sent_later_and_can_be_cancelled
        a_run_is_stopped
        a_failure_stands_where_it_happened
        files_are_picked_dropped_and_pasted
        sessions_are_searched_renamed_switched_and_deleted
        what_is_found_is_shown_in_its_place
        trying_again_and_editing_make_variants
        what_is_typed_after_new_or_edit_is_the_message
        a_message_that_is_sent_again_is_stored_once
        a_reload_during_an_answer_loses_nothing
        a_gateway_that_is_killed_during_an_answer_is_a_pause
        everything_can_be_done_with_the_keyboard
        the_token_is_taken_from_the_link_or_asked_for
        the_link_leads_to_a_box_to_type_in
        escape_closes_what_is_open_and_leaves_nothing
        commands_are_answered_here_alone_and_what_is_large_is_a_link
        a_reader_who_has_scrolled_up_stays_where_he_is
        ones_own_message_is_always_shown
        older_messages_come_page_by_page
        steps_that_were_too_many_are_read_when_they_are_asked_for
        a_new_attempt_is_shown_though_earlier_steps_were_asked_for
        on_a_telephone_the_list_is_a_page_of_its_own
        light_and_dark_are_as_the_system_says_or_as_was_chosen
        nothing_moves_with_reduced_motion
        a_read_only_page_shows_conversations
        nothing_is_sent_while_nothing_happens
        no_text_of_an_event_does_anything
        thousands_of_events_and_a_thousand_a_second_leave_the_page_usable
        a_session_of_any_length_is_there_at_once
        the_page_is_small_and_there_at_once
        axe_finds_nothing_serious
    }
    bridges {
        a_chat_of_telegram_is_a_conversation
        a_channel_of_slack_is_a_conversation
    }
    hooks {
        signed_webhooks_become_events_once
        forgeries_and_replays_are_refused
        webhooks_that_are_repeated_until_they_are_taken_are_stored_once_each
        what_is_wrong_with_a_hook_is_said_at_the_start
    }
    page_markdown {
        an_answer_that_grows_is_at_each_moment_what_it_would_be_at_once
        code_has_colours_formulas_are_set_and_notes_are_found
    }
    page_tools {
        a_change_is_seen_before_it_is_allowed
        each_kind_of_tool_has_its_form
    }
    page_ways {
        commands_complete_as_one_types
        what_the_agent_lets_people_choose_is_chosen_on_the_page
        who_looks_elsewhere_is_told_what_asks
        a_conversation_is_exported_linked_and_its_pictures_are_large
    }
    page_words {
        every_word_is_there_in_each_language_and_used
        no_template_has_words_of_its_own
        the_page_speaks_the_language_of_its_reader
    }
    page_firefox {
        firefox_shows_a_conversation_a_queue_and_fits_a_phone
    }
    page_look {
        what_is_wrong_is_said_first_and_can_be_mended
        a_consumer_is_paused_resumed_stopped_and_moved
        dead_letters_are_retried_and_discarded_one_some_or_all
        an_event_is_pushed_and_the_command_next_to_it_does_the_same
        events_are_filtered_read_page_by_page_and_followed
        words_are_searched_for_in_the_contents
        old_events_that_nobody_takes_are_flagged
        what_is_to_come_is_shown
        who_sees_nothing_reads_what_this_is_for_and_what_to_do
        the_steps_of_a_handler_are_shown_and_forgotten
        what_is_typed_stays_while_the_thread_cannot_be_read
        runs_of_one_second_are_told_apart
        a_filter_that_takes_too_long_says_how_far_it_has_come
        an_event_shows_its_content_and_who_handled_it
        threads_are_found_and_hidden_ones_are_counted
        a_gateway_that_is_killed_while_one_looks_is_a_pause
        nothing_is_asked_while_nothing_happens
    }
    page_trace {
        the_trace_of_an_answer_stands_beside_it
        a_run_of_an_agent_is_the_messages_that_it_has_answered
        a_trace_shows_how_each_tool_ended_and_is_zoomed
        an_event_shows_what_each_consumer_did_about_it
        a_run_of_many_events_lists_some_of_them
        a_model_goes_on_from_any_step_as_a_variant
    }
    page_figures {
        the_consumers_are_a_table_with_those_first_that_need_somebody
        charts_show_what_came_and_a_part_of_them_leads_to_its_events_and_runs
        events_are_narrowed_down_by_their_values
        numbers_do_not_split_the_reasons_of_dead_letters
    }
    page_look_ways {
        a_read_only_page_has_no_controls
        everything_is_reached_by_the_keyboard
        on_a_telephone_and_twice_as_large_everything_fits
        axe_finds_nothing_serious_in_queues
        no_text_of_a_thread_does_anything
        tens_of_thousands_of_events_scroll
    }
    pictures {
        make
    }
    browsers {
        a_page_of_an_admitted_origin_can_do_everything_and_another_nothing
        no_page_can_frame_the_page
    }
    proxy {
        behind_nginx_everything_works_with_the_lines_of_the_page
        behind_caddy_everything_works_with_the_lines_of_the_page
        a_quiet_connection_stays_open_through_the_proxy
        limits_are_for_the_clients_of_a_proxy
    }
    serving {
        the_commands_of_the_page_set_up_a_gateway_and_keep_it
        the_unit_and_the_image_start_the_gateway
        the_options_that_the_page_names_are_there
    }
    s3 {
        what_is_no_storage_is_refused_and_a_build_without_s3_says_how_to_get_one
        #[cfg_attr(not(feature = "s3"), ignore = "needs --features s3")]
        attachments_go_to_the_bucket_and_come_back_from_it
        #[cfg_attr(not(feature = "s3"), ignore = "needs --features s3")]
        agents_do_not_get_the_credentials_of_the_store
        #[cfg_attr(not(feature = "s3"), ignore = "needs --features s3")]
        an_attachment_leaves_the_bucket_with_its_session
        #[cfg_attr(not(feature = "s3"), ignore = "needs --features s3")]
        a_store_that_refuses_or_is_gone_is_reported_and_nothing_counts_as_stored
    }
    load {
        thousands_that_never_connect_are_each_closed_while_a_good_client_talks
        half_of_the_descriptors_are_kept_for_those_who_are_in
        without_descriptors_the_gateway_waits_and_then_continues
        a_lack_of_descriptors_is_called_by_its_name
    }
}

/// These load the machine as much as possible, so they run one after another: in one test, so that no other test waits
/// for its turn.
#[test]
fn clients_that_leave_delay_no_other_client() {
    for name in defined("leaving") {
        scenario("leaving", &name);
    }
}

#[test]
fn it_says_its_version() {
    let said = Command::new(env!("CARGO_BIN_EXE_thread-serve")).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        format!("thread serve {}\n", env!("CARGO_PKG_VERSION"))
    );
}
