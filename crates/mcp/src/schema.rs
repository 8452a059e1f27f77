//! JSON Schemas of arguments and results, as short as they can be: clients pay for them at every turn.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// The schema of a type, without what only its authors need.
pub fn of<T: JsonSchema>() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    shorten(&mut schema);
    schema.as_object().cloned().unwrap_or_default()
}

fn shorten(schema: &mut Value) {
    let Value::Object(object) = schema else { return };
    for key in ["title", "format", "default"] {
        // Not a property of that name.
        if !object.get(key).is_some_and(Value::is_object) {
            object.shift_remove(key);
        }
    }
    if object.get("minimum").is_some_and(|least| least == 0) {
        object.shift_remove("minimum");
    }
    // What may be null may be left out.
    let is_null = |kind: &Value| kind == "null" || kind["type"] == "null";
    if let Some(Value::Array(kinds)) = object.get("type")
        && let [kind] = kinds.iter().filter(|kind| !is_null(kind)).collect::<Vec<_>>()[..]
    {
        let kind = kind.clone();
        object.insert("type".into(), kind);
    }
    if let Some(Value::Array(words)) = object.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    if let Some(Value::Array(kinds)) = object.get("anyOf")
        && let [Value::Object(kind)] = kinds.iter().filter(|kind| !is_null(kind)).collect::<Vec<_>>()[..]
    {
        let kind = kind.clone();
        object.shift_remove("anyOf");
        object.extend(kind);
    }
    for (key, inner) in object.iter_mut() {
        match (key.as_str(), inner) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(shorten),
            (_, inner @ Value::Object(_)) => shorten(inner),
            (_, Value::Array(several)) => several.iter_mut().for_each(shorten),
            _ => {}
        }
    }
}
