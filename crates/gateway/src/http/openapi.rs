//! `GET /api/v1/openapi.json`: the HTTP interface, described in OpenAPI. It is made from the code.

use axum::Json;
use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use super::error::ErrorBody;
use super::{agui, attachments, content, hooks, login, openai, threads};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "thread serve",
        description = "Looking at threads and their consumers, whole; of conversations only what HTTP is used for, which \
                       PROTOCOL.md describes with the WebSocket.",
        license(name = "MIT", identifier = "MIT"),
    ),
    paths(
        login::login, content::content, attachments::upload, agui::run, agui::events, agui::cancel, agui::permission,
        agui::message_history, hooks::receive,
    ),
    components(schemas(ErrorBody, openai::ErrorBody)),
    security(("token" = [])),
    modifiers(&Token)
)]
struct Description;

struct Token;

impl utoipa::Modify for Token {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The token in the file `token` in the root, which the printed link has"))
            .build();
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// The description, as JSON.
pub fn description() -> Value {
    let mut description = Description::openapi();
    description.merge(threads::routes().split_for_parts().1);
    description.merge(openai::routes().split_for_parts().1);
    let mut description = serde_json::to_value(description).unwrap_or_default();
    absent_or_set(&mut description);
    there_or_not(&mut description);
    description
}

/// The keys that a flattened field adds are there or not, together.
fn there_or_not(description: &mut Value) {
    if let Some(flattened) = description.pointer_mut("/components/schemas/Summary/allOf/0") {
        let figures = flattened.take();
        *flattened = json!({ "anyOf": [figures, { "type": "object" }] });
    }
}

/// Unknown values are left out, never null; except in lists, and in errors of OpenAI's interface.
fn absent_or_set(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(types) = object.get_mut("type").filter(|types| types.is_array()) {
                let set = types.as_array().into_iter().flatten().find(|name| *name != "null").cloned();
                *types = set.unwrap_or_default();
            }
            if let Some(Value::Array(choices)) = object.get_mut("oneOf") {
                choices.retain(|choice| choice["type"] != "null");
                if let [Value::Object(only)] = choices.as_slice() {
                    let only = only.clone();
                    object.remove("oneOf");
                    object.extend(only);
                }
            }
            for (key, value) in object.iter_mut().filter(|(key, _)| !key.starts_with("OpenAi")) {
                match value {
                    Value::Object(item) if key == "items" => item.values_mut().for_each(absent_or_set),
                    value => absent_or_set(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(absent_or_set),
        _ => {}
    }
}

pub async fn openapi() -> Json<Value> {
    Json(description())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set to write the description instead of comparing it.
    const UPDATE: &str = "UPDATE_SCHEMAS";

    #[test]
    fn the_description_in_the_documentation_is_this_one() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/openapi.json");
        let made = serde_json::to_string_pretty(&description()).unwrap() + "\n";
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == made, "{} is out of date: run this test with {UPDATE}=1", path.display());
    }
}
