//! The JSON Schemas in docs/schema, made from the types: what attributes of the types refer to.

mod documents;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

pub const UUID: &str = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";

/// The schema of a type, in place: its definition stands under the name of its method or event.
pub fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    schema.remove("title");
    schema
}

/// The parts of a [`Content`](crate::Content).
pub fn parts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "object", "properties": { "type": { "type": "string" } }, "required": ["type"] },
        "minItems": 1,
    })
}

/// Frames of stored events, as event.json describes them.
pub fn frames(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "object", "required": ["type", "event", "payload", "seq", "time"] },
    })
}

/// For words to which a gateway may add others: any text, with the known ones as examples.
pub fn open(schema: &mut Schema) {
    if let Some(known) = schema.remove("enum") {
        schema.insert("type".to_owned(), "string".into());
        schema.insert("examples".to_owned(), known);
    }
}

/// For enums whose variants exclude each other.
pub fn one_of(schema: &mut Schema) {
    if let Some(variants) = schema.remove("anyOf") {
        schema.insert("oneOf".to_owned(), variants);
    }
}
