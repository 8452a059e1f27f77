//! What an editor lets people choose in a session: its agent, and what can be chosen at that agent, such as its mode.
//!
//! All of it is a list of options, which editors are told again when it changes. Modes are an older form of one of them.
//! Their list cannot be changed later: it is the agent's own, if it has said so by then, else the agents of the gateway.

use std::collections::BTreeMap;

use agent_client_protocol_schema::v1::{
    ConfigOptionUpdate, CurrentModeUpdate, SessionConfigOption, SessionConfigOptionCategory,
    SessionConfigSelectOption, SessionMode, SessionModeState, SessionUpdate,
};
use thread_protocol::event::{AgentOption, Event, OptionChoice, choose};
use thread_protocol::method::{AgentSummary, UpdateParams, Updated};

use crate::orders::Chosen;
use crate::updates::moved_to;

/// The id of the option that is the session's agent.
const AGENT: &str = "agent";

/// The category of an option that is a mode.
const MODE: &str = "mode";

/// What can be chosen in a session, and what is.
#[derive(Debug, Clone, Default)]
pub struct Choices {
    /// The agents that a session can have, and the one that it has.
    agents: Vec<AgentSummary>,
    agent: String,
    /// What the agent has.
    own: Vec<AgentOption>,
    /// The modes that the editor knows are the agent's own: the names of agents are none, whatever agent is next.
    has_own_modes: bool,
}

impl Choices {
    /// `agent` is the name of the session's agent, if it has one, and `own` what can be chosen there.
    pub fn new(agents: &[AgentSummary], agent: Option<String>, own: Vec<AgentOption>) -> Choices {
        let agent = agent.or_else(|| Some(agents.first()?.name.clone())).unwrap_or_default();
        let has_own_modes = own.iter().any(is_mode);
        Choices { agents: agents.to_vec(), agent, own, has_own_modes }
    }

    pub fn agents(&self) -> &[AgentSummary] {
        &self.agents
    }

    /// The session's agent; `None` if it has none, or one that the gateway no longer has.
    pub fn agent(&self) -> Option<&AgentSummary> {
        self.agents.iter().find(|agent| agent.name == self.agent)
    }

    /// Whether there are several agents: with one there is nothing to choose, nor if the session has one that the gateway
    /// no longer has.
    fn has_agents(&self) -> bool {
        self.agents.len() > 1 && self.agent().is_some()
    }

    /// The agent's mode, if it has modes.
    fn own_mode(&self) -> Option<&AgentOption> {
        self.own.iter().find(|option| is_mode(option))
    }

    /// The modes, as a session begins with them.
    pub fn modes(&self) -> Option<SessionModeState> {
        if self.has_own_modes {
            let mode = |choice: &OptionChoice| {
                SessionMode::new(choice.id.clone(), choice.name.clone())
                    .description(choice.description.clone())
            };
            let option = self.own_mode()?;
            let all = option.choices.iter().map(mode).collect();
            return Some(SessionModeState::new(option.current.clone(), all));
        }
        let mode = |agent: &AgentSummary| {
            SessionMode::new(agent.name.clone(), agent.name.clone()).description(agent.about.clone())
        };
        self.has_agents()
            .then(|| SessionModeState::new(self.agent.clone(), self.agents.iter().map(mode).collect()))
    }

    /// All options; `None` if there are none.
    pub fn options(&self) -> Option<Vec<SessionConfigOption>> {
        let choice = |agent: &AgentSummary| {
            SessionConfigSelectOption::new(agent.name.clone(), agent.name.clone())
                .description(agent.about.clone())
        };
        let agents = self.has_agents().then(|| {
            let choices: Vec<SessionConfigSelectOption> = self.agents.iter().map(choice).collect();
            let option = SessionConfigOption::select(AGENT, "Agent", self.agent.clone(), choices);
            // The first of a category is what editors show for it.
            let category = (!self.own.iter().any(is_mode)).then_some(SessionConfigOptionCategory::Mode);
            option.category(category)
        });
        let all: Vec<SessionConfigOption> = agents.into_iter().chain(self.of_agent().map(shown)).collect();
        (!all.is_empty()).then_some(all)
    }

    /// What the agent has, without what has the id of the choice of agents.
    fn of_agent(&self) -> impl Iterator<Item = &AgentOption> {
        self.own.iter().filter(|option| option.id != AGENT || !self.has_agents())
    }

    /// What is to be asked of the gateway for this; `None` if it cannot be chosen.
    pub fn meant(&self, session: &str, chosen: &Chosen) -> Option<UpdateParams> {
        let params = UpdateParams { session_id: session.to_owned(), ..UpdateParams::default() };
        let own = |option: &AgentOption, value: &String| {
            let can_be = option.choices.iter().any(|choice| choice.id == *value);
            let options = BTreeMap::from([(option.id.clone(), value.clone())]);
            can_be.then(|| UpdateParams { options: Some(options), ..params.clone() })
        };
        let agent = |name: &String| {
            let is_known = self.agents.iter().any(|agent| agent.name == *name);
            is_known.then(|| UpdateParams { agent: Some(name.clone()), ..params.clone() })
        };
        match chosen {
            Chosen::Mode(mode) if self.has_own_modes => self.own_mode().and_then(|option| own(option, mode)),
            Chosen::Mode(mode) => agent(mode),
            Chosen::Option { id, value } if id == AGENT && self.has_agents() => agent(value),
            Chosen::Option { id, value } => {
                self.of_agent().find(|option| option.id == *id).and_then(|option| own(option, value))
            }
        }
    }

    /// Takes in what the session has now. Returns what the editor is told.
    pub fn updated(&mut self, updated: &Updated) -> Vec<SessionUpdate> {
        self.change(|choices| {
            choices.agent.clone_from(&updated.agent);
            choices.own.clone_from(&updated.options);
        })
    }

    /// Takes in an event. Returns what the editor is told.
    pub fn apply(&mut self, event: &Event) -> Vec<SessionUpdate> {
        self.change(|choices| match event {
            Event::Options(said) => choices.own.clone_from(&said.options),
            Event::OptionChosen(chosen) => choose(&mut choices.own, chosen),
            event => {
                if let Some(agent) = moved_to(event).filter(|agent| **agent != *choices.agent) {
                    agent.clone_into(&mut choices.agent);
                    // The other agent says its own.
                    choices.own.clear();
                }
            }
        })
    }

    fn change(&mut self, change: impl FnOnce(&mut Choices)) -> Vec<SessionUpdate> {
        let mode = |choices: &Choices| choices.modes().map(|modes| modes.current_mode_id);
        let (mode_before, options_before) = (mode(self), self.options());
        change(self);
        let mut told = Vec::new();
        if let Some(mode) = mode(self).filter(|now| Some(now) != mode_before.as_ref()) {
            told.push(SessionUpdate::CurrentModeUpdate(CurrentModeUpdate::new(mode)));
        }
        let options = self.options();
        if options != options_before {
            let options = options.unwrap_or_default();
            told.push(SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(options)));
        }
        told
    }
}

fn is_mode(option: &AgentOption) -> bool {
    option.category.as_deref() == Some(MODE)
}

fn shown(option: &AgentOption) -> SessionConfigOption {
    let choice = |choice: &OptionChoice| {
        SessionConfigSelectOption::new(choice.id.clone(), choice.name.clone())
            .description(choice.description.clone())
    };
    let choices: Vec<SessionConfigSelectOption> = option.choices.iter().map(choice).collect();
    let category = option.category.clone().and_then(|word| serde_json::from_value(word.into()).ok());
    let (id, name) = (option.id.clone(), option.name.clone());
    let shown = SessionConfigOption::select(id, name, option.current.clone(), choices);
    shown.description(option.description.clone()).category(category)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use thread_protocol::event::{OptionChosen, Options};

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

    fn option(id: &str, category: &str) -> AgentOption {
        let choice = |id: &str| OptionChoice { id: id.into(), name: id.to_uppercase(), description: None };
        AgentOption {
            id: id.into(),
            name: id.to_uppercase(),
            description: None,
            category: Some(category.into()),
            current: "x".into(),
            choices: vec![choice("x"), choice("y")],
        }
    }

    fn updated(agent: &str, options: Vec<AgentOption>) -> Updated {
        Updated { session_id: "s".into(), agent: agent.into(), model: None, cwd: None, options }
    }

    fn told(updates: &[SessionUpdate]) -> Vec<Value> {
        updates.iter().map(|update| serde_json::to_value(update).unwrap()).collect()
    }

    fn mode(mode: &str) -> Chosen {
        Chosen::Mode(mode.into())
    }

    fn chosen(id: &str, value: &str) -> Chosen {
        Chosen::Option { id: id.into(), value: value.into() }
    }

    #[test]
    fn the_agents_are_modes_and_an_option_and_both_follow_a_move() {
        let mut choices = Choices::new(&agents(&["a", "b"]), None, Vec::new());
        let modes = serde_json::to_value(choices.modes()).unwrap();
        assert_eq!(modes["currentModeId"], "a");
        assert_eq!(modes["availableModes"][1], json!({ "id": "b", "name": "b", "description": "about b" }));
        let option = serde_json::to_value(choices.options()).unwrap();
        assert_eq!(
            [&option[0]["id"], &option[0]["type"], &option[0]["category"], &option[0]["currentValue"]],
            ["agent", "select", "mode", "a"]
        );
        for chosen in [mode("b"), chosen("agent", "b")] {
            assert_eq!(choices.meant("s", &chosen).unwrap().agent.as_deref(), Some("b"));
        }
        for chosen in [mode("c"), chosen("agent", "c"), chosen("volume", "a")] {
            assert!(choices.meant("s", &chosen).is_none());
        }
        let told = told(&choices.updated(&updated("b", Vec::new())));
        assert_eq!(told[0], json!({ "sessionUpdate": "current_mode_update", "currentModeId": "b" }));
        assert_eq!(told[1]["configOptions"][0]["currentValue"], "b");
        assert!(choices.updated(&updated("b", Vec::new())).is_empty());
    }

    #[test]
    fn without_a_choice_nothing_is_offered() {
        for mut choices in [
            Choices::new(&[], None, Vec::new()),
            Choices::new(&agents(&["a"]), None, Vec::new()),
            Choices::new(&agents(&["a", "b"]), Some("gone".to_owned()), Vec::new()),
        ] {
            assert!(choices.modes().is_none() && choices.options().is_none(), "{choices:?}");
            assert!(choices.updated(&updated("c", Vec::new())).is_empty(), "{choices:?}");
        }
    }

    #[test]
    fn what_the_agent_has_follows_its_events_and_ends_with_a_move() {
        let own = vec![option("mode", "mode"), option("model", "model"), option("agent", "_other")];
        let mut choices = Choices::new(&agents(&["a", "b"]), None, own.clone());
        assert_eq!(serde_json::to_value(choices.modes()).unwrap()["availableModes"][1]["id"], "y");
        let all = serde_json::to_value(choices.options()).unwrap();
        let shown =
            |key: &str| all.as_array().unwrap().iter().map(|one| one[key].clone()).collect::<Vec<_>>();
        assert_eq!(shown("id"), ["agent", "mode", "model"]);
        assert_eq!(shown("category"), [Value::Null, "mode".into(), "model".into()]);
        let meant = |chosen| choices.meant("s", &chosen).and_then(|params| params.options);
        assert_eq!(meant(mode("y")), Some(BTreeMap::from([("mode".into(), "y".into())])));
        assert_eq!(meant(chosen("model", "x")), Some(BTreeMap::from([("model".into(), "x".into())])));
        assert!(
            choices.meant("s", &mode("b")).is_none() && choices.meant("s", &chosen("model", "z")).is_none()
        );
        let choice =
            |value: &str| Event::OptionChosen(OptionChosen { id: "mode".into(), value: value.into() });
        let both = told(&choices.apply(&choice("y")));
        assert_eq!(both[0], json!({ "sessionUpdate": "current_mode_update", "currentModeId": "y" }));
        assert_eq!(both[1]["configOptions"][1]["currentValue"], "y");
        assert!(choices.apply(&choice("z")).is_empty());
        // The agent has not taken it.
        let said = Event::Options(Options { options: own, refused: Some("no".into()) });
        assert_eq!(told(&choices.apply(&said))[0]["currentModeId"], "x");
        assert!(choices.apply(&said).is_empty());
        // Moved to one that says nothing: its modes are no agents.
        let left = told(&choices.updated(&updated("b", Vec::new())));
        assert_eq!((left.len(), &left[0]["configOptions"][0]["currentValue"]), (1, &"b".into()));
    }

    #[test]
    fn an_agent_that_says_what_it_has_later_adds_options() {
        let mut choices = Choices::new(&agents(&["a"]), None, Vec::new());
        let said = Event::Options(Options { options: vec![option("mode", "mode")], refused: None });
        let told = told(&choices.apply(&said));
        assert_eq!((told.len(), &told[0]["configOptions"][0]["id"]), (1, &"mode".into()));
        // The editor knows no modes.
        assert!(choices.modes().is_none() && choices.meant("s", &mode("y")).is_none());
        assert!(choices.meant("s", &chosen("mode", "y")).is_some());
    }
}
