//! A person at a real terminal, inside tmux: the tests send keys and read the screen.
//!
//! Without tmux, each test prints that it is skipped.

use std::fs;

use thread_testkit::{World, ids, kill_and_wait, skipped, wait_until};

/// A shell in a terminal. Its prompt shows the number of the next command and the exit code of the
/// last one: `[2 0] `.
struct Terminal<'a> {
    world: &'a World,
    /// The tmux server. It is not one of the processes that the world would kill.
    server: u32,
    commands: usize,
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        kill_and_wait(self.server);
    }
}

impl<'a> Terminal<'a> {
    /// Prints a skip notice and returns `None` if there is no tmux.
    fn open(world: &'a World) -> Option<Terminal<'a>> {
        if !world.bin().join("tmux").exists() {
            skipped("tmux");
            return None;
        }
        let shell = r"exec env PS1='[\# $?] ' bash --norc --noprofile";
        // Wide enough that no line wraps.
        let session = ["new-session", "-d", "-x", "200", "-y", "50", "-P", "-F", "#{pid}", shell];
        let server = tmux(world, &session).trim().parse().unwrap();
        let terminal = Terminal { world, server, commands: 0 };
        terminal.wait_for_prompt();
        Some(terminal)
    }

    /// The screen including its scrollback.
    fn screen(&self) -> String {
        tmux(self.world, &["capture-pane", "-p", "-S", "-"])
    }

    fn types(&self, text: &str) {
        tmux(self.world, &["send-keys", "-l", "--", text]);
    }

    fn presses(&self, key: &str) {
        tmux(self.world, &["send-keys", key]);
    }

    /// Types a command that does not end by itself, and waits until it runs.
    fn starts(&self, line: &str) {
        self.types(line);
        self.presses("Enter");
        let words: Vec<&str> = line.split(' ').collect();
        wait_until(line, || self.runs(&words[1..].join("\0")));
    }

    /// Whether a `thread` with these arguments runs.
    fn runs(&self, args: &str) -> bool {
        let command_line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let wanted = format!("thread\0{args}\0").into_bytes();
        self.world.processes().into_iter().any(|pid| command_line(pid).ends_with(&wanted))
    }

    /// Types a command. Returns its output and its exit code.
    fn run(&mut self, line: &str) -> (String, String) {
        self.types(line);
        self.presses("Enter");
        self.ends()
    }

    /// Waits until the last command has ended. Returns its output and its exit code.
    fn ends(&mut self) -> (String, String) {
        self.commands += 1;
        let exit = self.wait_for_prompt();
        let screen = self.screen();
        let after = |number: usize| screen.rfind(&format!("\n[{number} ")).map(|at| at + 1);
        let from = after(self.commands).unwrap_or(0);
        let to = after(self.commands + 1).unwrap();
        let printed = screen[from..to].split_once('\n').map_or("", |(_, printed)| printed);
        (printed.to_owned(), exit)
    }

    /// Waits for the prompt after the commands so far. Returns the exit code it shows.
    fn wait_for_prompt(&self) -> String {
        let prompt = format!("[{} ", self.commands + 1);
        let mut exit = None;
        wait_until(&format!("the prompt {prompt:?}"), || {
            let screen = self.screen();
            let last = screen.trim_end().lines().last().unwrap_or_default();
            exit = last.strip_prefix(&prompt).and_then(|rest| rest.strip_suffix(']')).map(str::to_owned);
            exit.is_some()
        });
        exit.unwrap()
    }

    fn wait_for(&self, text: &str) {
        wait_until(text, || self.screen().contains(text));
    }
}

/// A program in a terminal.
pub struct Screen<'a> {
    world: &'a World,
    server: u32,
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        kill_and_wait(self.server);
    }
}

impl<'a> Screen<'a> {
    /// Prints a skip notice and returns `None` if there is no tmux.
    pub fn open(world: &'a World, command: &str) -> Option<Screen<'a>> {
        if !world.bin().join("tmux").exists() {
            skipped("tmux");
            return None;
        }
        let session = ["new-session", "-d", "-x", "200", "-y", "50", "-P", "-F", "#{pid}", command];
        let server = tmux(world, &session).trim().parse().unwrap();
        Some(Screen { world, server })
    }

    pub fn text(&self) -> String {
        tmux(self.world, &["capture-pane", "-p"])
    }

    pub fn types(&self, text: &str) {
        tmux(self.world, &["send-keys", "-l", "--", text]);
    }

    pub fn presses(&self, key: &str) {
        tmux(self.world, &["send-keys", key]);
    }

    pub fn wait_for(&self, text: &str) {
        wait_until(text, || self.text().contains(text));
    }
}

/// Sends a command to this world's tmux server. Returns its output.
fn tmux(world: &World, args: &[&str]) -> String {
    let mut run = world.sh("exec tmux -S screen -f /dev/null \"$@\"").arg("tmux");
    run.command().args(args);
    run.quiet()
}

fn printed(text: &str, exit: &str) -> (String, String) {
    (text.to_owned(), exit.to_owned())
}

#[test]
fn a_terminal_shows_what_follow_prints_at_once_and_ctrl_c_ends_it() {
    let world = World::with_thread();
    let Some(mut terminal) = Terminal::open(&world) else { return };
    world.push("before");
    terminal.starts("thread peek --tail 1 --follow");
    terminal.wait_for("\"before\"");
    world.push("while it follows");
    terminal.wait_for("\"while it follows\"");
    terminal.presses("C-c");
    let (shown, exit) = terminal.ends();
    assert_eq!(exit, "130");
    assert_eq!(ids(shown.strip_suffix("^C\n").unwrap_or(&shown)), [1, 2]);
}

#[test]
fn ctrl_c_ends_a_waiting_pop_and_leaves_the_cursor() {
    let world = World::with_thread();
    let Some(mut terminal) = Terminal::open(&world) else { return };
    world.push("done");
    world.idle_consumer("bot", "");
    world.off(["ack", "--consumer", "bot", "--event-id", "1"]).ok();
    terminal.starts("thread pop --consumer bot --resume --wait 1h");
    terminal.presses("C-c");
    assert_eq!(terminal.ends(), printed("^C\n", "130"));
    assert_eq!(world.consumer("bot")["last_acked_id"], 1);
}

#[test]
fn a_reader_that_was_suspended_misses_nothing() {
    let world = World::with_thread();
    let Some(mut terminal) = Terminal::open(&world) else { return };
    terminal.starts("thread peek --last-event-id 0 --follow");
    terminal.presses("C-z");
    assert_eq!(terminal.ends().1, "148");
    world.push("while it slept");
    terminal.types("fg");
    terminal.presses("Enter");
    terminal.wait_for("\"while it slept\"");
    terminal.presses("C-c");
    assert_eq!(terminal.ends().1, "130");
}

#[test]
fn a_reader_ends_with_its_terminal() {
    let world = World::with_thread();
    let Some(terminal) = Terminal::open(&world) else { return };
    terminal.starts("thread peek --follow");
    drop(terminal);
    world.wait_until_quiet();
}

#[test]
fn a_handler_outlives_ctrl_c_and_the_terminal_that_started_it() {
    let world = World::with_thread();
    let Some(mut terminal) = Terminal::open(&world) else { return };
    let handler = "touch began; while ! [ -e go ]; do sleep 0.02; done; touch done";
    world.subscribe("bot", handler, &["--deliver", "stdin"]);
    let push = "thread push --source self --type message --content x";
    assert_eq!(terminal.run(push), printed("1\n", "0"));
    world.wait_for_file("began");
    terminal.starts("thread logs --consumer bot -f");
    terminal.presses("C-c");
    assert_eq!(terminal.ends().1, "130");
    drop(terminal);
    assert_eq!(world.state("bot"), "running");
    world.write("go", "");
    world.wait_for_file("done");
    world.wait_for_state("bot", "idle");
    world.wait_until_quiet();
}

#[test]
fn a_batch_typed_by_hand_ends_with_ctrl_d_and_one_that_is_interrupted_stores_nothing() {
    let world = World::with_thread();
    let Some(mut terminal) = Terminal::open(&world) else { return };
    let line = r#"{"source":"self","type":"record","content":"typed"}"#;

    terminal.starts("thread push --batch");
    terminal.types(line);
    terminal.presses("Enter");
    terminal.presses("C-c");
    assert_eq!(terminal.ends().1, "130");
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);

    terminal.starts("thread push --batch");
    terminal.types(line);
    terminal.presses("Enter");
    terminal.presses("C-d");
    assert_eq!(terminal.ends(), (format!("{line}\n1\n"), "0".to_owned()));

    world.write("three", format!("{line}\n").repeat(3));
    assert_eq!(terminal.run("cat three | thread push --batch"), printed("3\n", "0"));
    assert_eq!(terminal.run("thread peek --last-event-id 0 | wc -l"), printed("4\n", "0"));
    world.assert_log_is_exact();
}

#[test]
fn nothing_that_was_stored_or_mistyped_moves_the_terminals_cursor() {
    let world = World::with_thread();
    let Some(mut terminal) = Terminal::open(&world) else { return };
    let clear = "\x1b[2J\x1b[H\x1b]0;title\x07";
    world.push(clear);
    world.idle_consumer("bot", &format!("content <> '{clear}'"));
    world.db().execute("UPDATE subscriptions SET handler_cmd = ?1", [clear]).unwrap();
    fs::create_dir_all(world.path("inbox/logs/handlers")).unwrap();
    world.write("inbox/logs/handlers/bot.log", format!("\u{9b}2J{clear}\n"));
    assert_eq!(terminal.run("echo here"), printed("here\n", "0"));
    for (command, exit) in [
        ("thread peek --last-event-id 0", "0"),
        ("thread info --format text", "0"),
        ("cat inbox/events.jsonl", "0"),
        ("cat inbox/logs/thread.log", "0"),
        ("thread logs --consumer bot", "0"),
        (r"thread pause --consumer $'\e[2J\e[H'", "1"),
        (r"thread push --source self --type $'\e[2J' --content x", "2"),
    ] {
        let (shown, ended) = terminal.run(command);
        assert_eq!(ended, exit, "{command}: {shown}");
        assert!(shown.contains("[2J"), "{command}: {shown}");
        assert!(terminal.screen().contains("\nhere\n"), "{command} cleared the screen");
    }
}

#[test]
fn help_is_coloured_in_a_terminal_unless_no_color_is_set() {
    let world = World::with_thread();
    let Some(mut terminal) = Terminal::open(&world) else { return };
    let with_colours = |terminal: &Terminal| tmux(terminal.world, &["capture-pane", "-p", "-e"]);
    assert_eq!(terminal.run("NO_COLOR=1 thread info -h").1, "0");
    assert!(!with_colours(&terminal).contains('\x1b'), "{}", with_colours(&terminal));
    assert_eq!(terminal.run("thread info -h").1, "0");
    assert!(with_colours(&terminal).contains('\x1b'), "{}", with_colours(&terminal));
}

#[test]
fn bash_completes_commands_options_and_words_at_the_press_of_tab() {
    let world = World::with_thread();
    let Some(mut terminal) = Terminal::open(&world) else { return };
    assert_eq!(terminal.run(". <(thread completions bash)"), printed("", "0"));
    for part in ["thread pu", "--sou", "self --ty", "rec", "--content x"] {
        terminal.types(part);
        terminal.presses("Tab");
    }
    terminal.wait_for("thread push --source self --type record --content x");
    terminal.presses("Enter");
    assert_eq!(terminal.ends(), printed("1\n", "0"));
}
