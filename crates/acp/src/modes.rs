//! The agents of the gateway as what an editor lets people choose: modes, and the same as an option.

use agent_client_protocol_schema::v1::{
    ConfigOptionUpdate, CurrentModeUpdate, SessionConfigOption, SessionConfigOptionCategory,
    SessionConfigSelectOption, SessionMode, SessionModeState, SessionUpdate,
};
use thread_protocol::method::AgentSummary;

/// The id of the option.
pub const AGENT: &str = "agent";

/// The agents that a session can have, and the one that it has.
#[derive(Debug, Clone, Default)]
pub struct Agents {
    all: Vec<AgentSummary>,
    current: String,
}

impl Agents {
    /// `current` is the name of the session's agent, if it has one.
    pub fn new(all: &[AgentSummary], current: Option<String>) -> Agents {
        let current = current.or_else(|| Some(all.first()?.name.clone()));
        Agents { all: all.to_vec(), current: current.unwrap_or_default() }
    }

    /// Whether there is something to choose: with one agent there is not, nor if the session has one that the gateway
    /// no longer has.
    fn is_choice(&self) -> bool {
        self.all.len() > 1 && self.has(&self.current)
    }

    pub fn has(&self, name: &str) -> bool {
        self.all.iter().any(|agent| agent.name == name)
    }

    pub fn modes(&self) -> Option<SessionModeState> {
        let mode = |agent: &AgentSummary| {
            SessionMode::new(agent.name.clone(), agent.name.clone()).description(agent.about.clone())
        };
        self.is_choice()
            .then(|| SessionModeState::new(self.current.clone(), self.all.iter().map(mode).collect()))
    }

    pub fn options(&self) -> Option<Vec<SessionConfigOption>> {
        let choice = |agent: &AgentSummary| {
            SessionConfigSelectOption::new(agent.name.clone(), agent.name.clone())
                .description(agent.about.clone())
        };
        self.is_choice().then(|| {
            let choices: Vec<SessionConfigSelectOption> = self.all.iter().map(choice).collect();
            let option = SessionConfigOption::select(AGENT, "Agent", self.current.clone(), choices);
            vec![option.category(SessionConfigOptionCategory::Mode)]
        })
    }

    /// The session has another agent. Returns what the editor is told.
    pub fn moved(&mut self, name: &str) -> Vec<SessionUpdate> {
        if self.current == name {
            return Vec::new();
        }
        name.clone_into(&mut self.current);
        let Some(options) = self.options() else { return Vec::new() };
        vec![
            SessionUpdate::CurrentModeUpdate(CurrentModeUpdate::new(name.to_owned())),
            SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(options)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn agents(names: &[&str]) -> Vec<AgentSummary> {
        let agent = |name: &&str| AgentSummary {
            name: (*name).to_owned(),
            about: Some(format!("about {name}")),
            prompts: Vec::new(),
            allow: Vec::new(),
            steps: false,
        };
        names.iter().map(agent).collect()
    }

    #[test]
    fn the_agents_are_modes_and_an_option_and_both_follow_a_move() {
        let mut agents = Agents::new(&agents(&["a", "b"]), None);
        let modes = serde_json::to_value(agents.modes()).unwrap();
        assert_eq!(modes["currentModeId"], "a");
        assert_eq!(modes["availableModes"][1], json!({ "id": "b", "name": "b", "description": "about b" }));
        let option = serde_json::to_value(agents.options()).unwrap();
        assert_eq!(
            [&option[0]["id"], &option[0]["type"], &option[0]["category"], &option[0]["currentValue"]],
            ["agent", "select", "mode", "a"]
        );
        let told: Vec<Value> =
            agents.moved("b").iter().map(|update| serde_json::to_value(update).unwrap()).collect();
        assert_eq!(told[0], json!({ "sessionUpdate": "current_mode_update", "currentModeId": "b" }));
        assert_eq!(told[1]["configOptions"][0]["currentValue"], "b");
        assert!(agents.moved("b").is_empty());
    }

    #[test]
    fn without_a_choice_nothing_is_offered() {
        for agents in [
            Agents::new(&[], None),
            Agents::new(&agents(&["a"]), None),
            Agents::new(&agents(&["a", "b"]), Some("gone".to_owned())),
        ] {
            assert!(agents.modes().is_none() && agents.options().is_none(), "{agents:?}");
        }
        assert!(Agents::new(&agents(&["a"]), None).moved("b").is_empty());
    }
}
