//! The three documents: a definition for each method or event, chosen by its name.

use std::path::PathBuf;
use std::{env, fs};

use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::UUID;
use crate::{METHODS, event, method};

const TIME: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z$";

/// Set to write the schemas instead of comparing them.
const UPDATE: &str = "UPDATE_SCHEMAS";

/// Values that may be left out are never written as null.
fn absent_or_set(schema: &mut Schema) {
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| required.as_array().is_some_and(|names| names.iter().any(|n| n == name));
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (_, property) in properties.iter_mut().filter(|(name, _)| !is_required(name)) {
            if let Some(types) = property.get_mut("type").filter(|types| types.is_array()) {
                *types = types[0].take();
            }
            if let Some(reference) = property.pointer_mut("/anyOf/0/$ref").map(Value::take) {
                property["$ref"] = reference;
                property.as_object_mut().unwrap().remove("anyOf");
            }
        }
    }
    transform_subschemas(&mut absent_or_set, schema);
}

/// Says what all keys of one name have in common, and leaves out what is noise in JSON Schema.
fn refine(schema: &mut Schema) {
    if let Some(format) = schema.get("format").and_then(Value::as_str)
        && format.contains("int")
    {
        schema.remove("format");
    }
    // `required` says this already.
    schema.remove("default");
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties {
            let pattern = match name.as_str() {
                "sessionId" => UUID,
                "timestamp" | "createdAt" | "lastActivity" => TIME,
                _ => continue,
            };
            property["pattern"] = pattern.into();
        }
    }
    transform_subschemas(&mut refine, schema);
}

/// Puts the definitions of a generator, and those that are given, under `$defs`.
fn with_definitions(
    mut schema: Schema,
    mut generator: SchemaGenerator,
    own: impl IntoIterator<Item = (&'static str, Schema)>,
) -> Value {
    let mut definitions = generator.take_definitions(true);
    for (name, definition) in own {
        assert!(
            definitions.insert(name.to_owned(), definition.into()).is_none(),
            "two definitions of {name}"
        );
    }
    definitions.sort_keys();
    schema.insert("$defs".to_owned(), definitions.into());
    if generator.contract().is_serialize() {
        absent_or_set(&mut schema);
    }
    refine(&mut schema);
    schema.into()
}

/// `then` for each name that `key` may have.
fn by_name<'n>(key: &str, names: impl Iterator<Item = &'n str>, then: &str) -> Value {
    let rule = |name: &str| {
        let then = json!({ "properties": { then: { "$ref": format!("#/$defs/{name}") } } });
        json!({ "if": { "properties": { key: { "const": name } } }, "then": then })
    };
    names.map(rule).collect()
}

fn request() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let mut unused = SchemaSettings::draft2020_12().into_generator();
    let methods = method::schemas(&mut generator, &mut unused);
    let mut schema = json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A request of a client",
        "type": "object",
        "properties": {
            "type": { "const": "req" },
            "id": { "type": "string" },
            "method": { "enum": METHODS },
            "params": { "type": "object" },
        },
        "required": ["type", "id", "method"],
    });
    schema.insert("allOf".to_owned(), by_name("method", METHODS.iter().copied(), "params"));
    with_definitions(schema, generator, methods.into_iter().map(|(name, params, _)| (name, params)))
}

fn response() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut unused = SchemaSettings::draft2020_12().into_generator();
    let methods = method::schemas(&mut unused, &mut generator);
    let id = json!({ "type": "string" });
    let schema = json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A response of the gateway",
        "description": "The payload of a method is at #/$defs/<method>.",
        "oneOf": [
            {
                "type": "object",
                "properties": {
                    "type": { "const": "res" }, "id": id, "ok": { "const": true }, "payload": { "type": "object" },
                },
                "required": ["type", "id", "ok", "payload"],
            },
            {
                "type": "object",
                "properties": {
                    "type": { "const": "res" }, "id": id, "ok": { "const": false },
                    "error": { "type": "string", "minLength": 1 },
                    "code": { "type": "string", "pattern": "^[a-z][a-z_]*$" },
                },
                "required": ["type", "id", "ok", "error", "code"],
            },
        ],
    });
    with_definitions(schema, generator, methods.into_iter().map(|(name, _, payload)| (name, payload)))
}

fn event() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let events = event::schemas(&mut generator);
    let mut schema = json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event",
        "type": "object",
        "properties": {
            "type": { "const": "event" },
            "event": { "enum": event::EVENTS },
            "payload": {
                "type": "object",
                "properties": {
                    "sessionId": { "type": ["string", "null"] },
                    "runId": { "type": ["string", "null"] },
                },
                "required": ["sessionId", "runId"],
            },
            "seq": { "type": "integer", "minimum": 1 },
            "time": { "type": "string", "pattern": TIME },
        },
        "required": ["type", "event", "payload"],
    });
    schema.insert("allOf".to_owned(), by_name("event", event::EVENTS.iter().copied(), "payload"));
    with_definitions(schema, generator, events)
}

#[test]
fn the_schemas_are_those_of_the_types() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    for (name, schema) in [("request", request()), ("response", response()), ("event", event())] {
        let text = format!("{schema:#}\n");
        let path = dir.join(format!("{name}.json"));
        if env::var_os(UPDATE).is_some() {
            fs::write(&path, text).unwrap();
        } else {
            let written = fs::read_to_string(&path).unwrap();
            assert!(
                written == text,
                "docs/schema/{name}.json is not what the types say; if they are right, write it with\n  \
                 {UPDATE}=1 cargo test -p thread-protocol schemas"
            );
        }
    }
}
