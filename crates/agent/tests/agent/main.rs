//! The program `thread-agent`, driven as its users do: real threads, real handlers, real programs.

mod acp;
mod ag_ui;
mod attachments;
mod disk;
mod example;
mod exec;
mod failures;
mod harness;
mod install;
mod keys;
mod kill;
mod ndjson;
mod openai;
mod priorities;
mod retention;
mod slots;
mod stop;
mod sub_agents;
mod tools;
mod tools_killed;
mod usage;

#[test]
fn the_example_of_the_documentation_runs() {
    example::example().unwrap();
}
