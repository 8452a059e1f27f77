//! Columns that hold JSON.

/// The value of a column; the default if it is NULL or not in this program's form.
pub fn from_json<T: serde::de::DeserializeOwned + Default>(json: Option<&str>) -> T {
    json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
}

pub fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("numbers and text always have a JSON form")
}
