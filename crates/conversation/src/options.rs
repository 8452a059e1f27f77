//! What can be chosen at an agent, such as its mode or its model: all of it as the agent says, and each choice.
//!
//! The newest list counts, with the choices after it: the agent says the list again once it has taken one, or not.

use serde::{Deserialize, Serialize};

use crate::lenient::lenient;

/// What can be chosen: the content of `options`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AgentOptions {
    pub options: Vec<AgentOption>,
    /// Why the agent has not taken what was chosen last.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Something that has one of several values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AgentOption {
    pub id: String,
    pub name: String,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What kind of thing it is: `mode`, `model`, `thought_level`, or a word of the agent's own.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The id of the choice that it has.
    pub current: String,
    pub choices: Vec<OptionChoice>,
}

/// A value that an option can have.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OptionChoice {
    pub id: String,
    pub name: String,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Somebody has chosen a value: the content of `option`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionChosen {
    /// The id of the option.
    pub id: String,
    /// The id of the choice.
    pub value: String,
}

impl AgentOptions {
    /// The option that a choice is of, if there is one with such a value.
    pub fn find(&self, chosen: &OptionChosen) -> Option<&AgentOption> {
        let option = self.options.iter().find(|option| option.id == chosen.id)?;
        option.choices.iter().any(|choice| choice.id == chosen.value).then_some(option)
    }

    /// Takes in a choice. One that is not possible changes nothing.
    pub fn choose(&mut self, chosen: &OptionChosen) {
        if self.find(chosen).is_none() {
            return;
        }
        let option = self.options.iter_mut().find(|option| option.id == chosen.id);
        option.into_iter().for_each(|option| option.current.clone_from(&chosen.value));
    }
}
