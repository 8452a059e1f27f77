//! What an attempt has taken: tokens, and what they cost.

use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thread::NewEvent;

use crate::lenient::{is_default, lenient};

/// Numbers of tokens, as far as the agent says: the key `usage` of the metadata of what ends an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// All that was read, those that were in a cache included.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub input_tokens: u64,
    /// All that was written, reasoning included.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub output_tokens: u64,
    /// Of those that were read: how many were in a cache.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub cached_tokens: u64,
    /// Of those that were written: how many are reasoning.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub reasoning_tokens: u64,
}

/// What something costs, as the agent says: the key `cost`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Not negative, and finite.
    pub amount: f64,
    /// Such as `USD`; empty if it is not known.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_default")]
    pub currency: String,
}

/// What was taken, and which agent has taken it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spent {
    /// The agent's name, if it has one.
    pub agent: Option<String>,
    pub usage: Usage,
    pub cost: Cost,
}

impl Usage {
    /// What was read and written together.
    pub fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// What a model says with its answer, by OpenAI's names or by those of others; what it does not say is 0.
    pub fn reported(usage: &Value) -> Usage {
        let number =
            |paths: &[&str]| paths.iter().find_map(|path| usage.pointer(path)?.as_u64()).unwrap_or(0);
        Usage {
            input_tokens: number(&["/input_tokens", "/prompt_tokens", "/inputTokens"]),
            output_tokens: number(&["/output_tokens", "/completion_tokens", "/outputTokens"]),
            cached_tokens: number(&[
                "/cached_tokens",
                "/prompt_tokens_details/cached_tokens",
                "/input_tokens_details/cached_tokens",
                "/cachedReadTokens",
            ]),
            reasoning_tokens: number(&[
                "/reasoning_tokens",
                "/completion_tokens_details/reasoning_tokens",
                "/output_tokens_details/reasoning_tokens",
                "/thoughtTokens",
            ]),
        }
    }
}

impl Cost {
    /// A number, or `{"amount","currency"}`; nothing if it is neither.
    pub fn reported(cost: &Value) -> Cost {
        let amount = cost.as_f64().or_else(|| cost.get("amount")?.as_f64()).unwrap_or_default();
        let currency = cost.get("currency").and_then(Value::as_str).unwrap_or_default();
        let fits = amount.is_finite() && amount > 0.0;
        Cost { amount: if fits { amount } else { 0.0 }, currency: currency.chars().take(16).collect() }
    }
}

impl Spent {
    pub fn is_nothing(&self) -> bool {
        self.usage == Usage::default() && self.cost.amount <= 0.0
    }

    /// What the metadata of an event says.
    pub(crate) fn of(agent: Option<String>, usage: &Value, cost: &Value) -> Spent {
        let usage = serde_json::from_value(usage.clone()).unwrap_or_default();
        Spent { agent, usage, cost: Cost::reported(cost) }
    }

    /// Adds this to the metadata of an event.
    pub fn noted(&self, mut event: NewEvent<'static>) -> NewEvent<'static> {
        let mut metadata: serde_json::Map<String, Value> =
            event.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if let Some(agent) = &self.agent {
            metadata.insert("agent".to_owned(), agent.clone().into());
        }
        if self.usage != Usage::default() {
            metadata.insert("usage".to_owned(), json!(self.usage));
        }
        if self.cost.amount > 0.0 {
            metadata.insert("cost".to_owned(), json!(self.cost));
        }
        event.metadata = (!metadata.is_empty()).then(|| Value::Object(metadata).to_string().into());
        event
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        for (sum, more) in [
            (&mut self.input_tokens, other.input_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.reasoning_tokens, other.reasoning_tokens),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl AddAssign<&Spent> for Spent {
    fn add_assign(&mut self, other: &Spent) {
        self.usage += other.usage;
        self.cost.amount += other.cost.amount;
        if self.cost.currency.is_empty() {
            self.cost.currency.clone_from(&other.cost.currency);
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the noise of sums of binary fractions.
        let amount = (self.amount * 1e6).round() / 1e6;
        match self.currency.is_empty() {
            true => write!(f, "{amount}"),
            false => write!(f, "{amount} {}", self.currency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_is_understood_by_any_of_their_names() {
        let all = Usage { input_tokens: 9, output_tokens: 5, cached_tokens: 4, reasoning_tokens: 3 };
        for said in [
            json!({ "prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": { "cached_tokens": 4 },
                    "completion_tokens_details": { "reasoning_tokens": 3 } }),
            json!({ "input_tokens": 9, "output_tokens": 5, "cached_tokens": 4, "reasoning_tokens": 3 }),
            json!({ "inputTokens": 9, "outputTokens": 5, "cachedReadTokens": 4, "thoughtTokens": 3 }),
        ] {
            assert_eq!(Usage::reported(&said), all, "{said}");
        }
        for said in [json!(null), json!(7), json!({ "prompt_tokens": -1 }), json!({ "prompt_tokens": "x" })] {
            assert_eq!(Usage::reported(&said), Usage::default(), "{said}");
        }
        assert_eq!(all.total(), 14);
    }

    #[test]
    fn a_cost_is_a_number_or_has_a_currency() {
        let cost = |value: Value| Cost::reported(&value).to_string();
        assert_eq!(cost(json!(0.1)), "0.1");
        assert_eq!(cost(json!({ "amount": 2.5, "currency": "USD" })), "2.5 USD");
        for none in [json!(-1), json!("x"), json!({}), Value::Null] {
            assert_eq!(Cost::reported(&none).amount, 0.0, "{none}");
        }
        let mut sum = Spent::default();
        for _ in 0..3 {
            sum += &Spent {
                cost: Cost::reported(&json!({ "amount": 0.1, "currency": "EUR" })),
                usage: Usage { input_tokens: 9, ..Usage::default() },
                ..Spent::default()
            };
        }
        assert_eq!((sum.cost.to_string(), sum.usage.input_tokens), ("0.3 EUR".to_owned(), 27));
    }

    #[test]
    fn what_was_spent_is_in_the_metadata_of_an_event_if_it_is_known() {
        let usage = Usage { input_tokens: 9, ..Usage::default() };
        let cost = Cost { amount: 2.5, currency: "USD".into() };
        for (spent, metadata, is_nothing) in [
            (Spent::default(), None, true),
            (Spent { agent: Some("a".into()), ..Spent::default() }, Some(json!({ "agent": "a" })), true),
            (Spent { usage, ..Spent::default() }, Some(json!({ "usage": usage })), false),
            (Spent { cost: cost.clone(), ..Spent::default() }, Some(json!({ "cost": cost })), false),
        ] {
            assert_eq!(spent.is_nothing(), is_nothing, "{spent:?}");
            let event = spent.noted(NewEvent::message("x", "y").unwrap());
            let noted = event.metadata.map(|text| serde_json::from_str(&text).unwrap());
            assert_eq!(noted, metadata);
            let noted: Value = noted.unwrap_or_default();
            let agent = noted["agent"].as_str().map(str::to_owned);
            assert_eq!(Spent::of(agent, &noted["usage"], &noted["cost"]), spent);
        }
    }
}
