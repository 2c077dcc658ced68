//! Generates `docs/rules.md` from the schema of the rules.

use std::fmt::Write;

use serde_json::Value;

const HEAD: &str = include_str!("head.md");
const TAIL: &str = include_str!("tail.md");

/// Returns the whole page.
pub(crate) fn page(schema: &Value) -> String {
    let schema = &inlined(schema, schema);
    let map = |name: &str| &schema["$defs"][name];
    let parts = [
        ("The file", "", schema),
        ("`defaults`", "", map("defaults")),
        ("`limits`", "", map("limits")),
        (
            "`leases`",
            "Needs `redis` or `redis_file`. The file must also contain at least one rule.",
            map("leases"),
        ),
        ("`slurm`", "", map("slurm")),
        ("A rule", "", map("rule")),
        ("`pick`", "", map("pick")),
        ("An entry of `except`", "An entry is a condition, with these additional keys.", map("exception")),
        ("A step", "A step has one of these keys, and optionally `after`.", map("step")),
        ("A channel of `notify`", "A channel has one of these keys.", map("channel")),
        ("`mail`", "Needs exactly one of `to`, `to_gecos` and `to_program`.", map("mail")),
        ("`webhook`", "Needs exactly one of `url` and `url_file`.", map("webhook")),
        ("A condition", "A condition has one or more of these keys; all must be true.", map("condition")),
    ];
    let keys = &schema["$defs"]["condition"]["properties"];
    let mut page = HEAD.to_owned();
    for (title, about, part) in parts {
        let rows = part["properties"].as_object().into_iter().flatten();
        let shape = |key: &str, value| {
            if key == "rules" { "a list: [rules](#a-rule)".to_owned() } else { shape(value) }
        };
        let rows = rows.filter(|(key, _)| title != "An entry of `except`" || keys[key.as_str()].is_null());
        let about = if about.is_empty() { String::new() } else { format!("{about}\n\n") };
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {title}\n\n{about}| key | value | meaning |\n|---|---|---|\n");
        for (key, value) in rows {
            let required = part["required"].as_array().is_some_and(|all| all.iter().any(|name| name == key));
            let required = if required { " Required." } else { "" };
            let meaning = value["description"].as_str().unwrap_or_default();
            let _ = writeln!(page, "| `{key}` | {} | {meaning}{required} |", shape(key, value));
        }
    }
    page + TAIL
}

/// Returns the schema with references replaced by their definitions, except references that [`named`] describes.
fn inlined(value: &Value, schema: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| inlined(item, schema)).collect(),
        Value::Object(keys) => {
            let name = value["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
            let definition = name.filter(|name| named(name).is_none()).map(|name| &schema["$defs"][name]);
            let inner = definition.map(|definition| inlined(definition, schema));
            let mut all = inner.and_then(|inner| inner.as_object().cloned()).unwrap_or_default();
            let own = keys.iter().filter(|(key, _)| definition.is_none() || *key != "$ref");
            all.extend(own.map(|(key, value)| (key.clone(), inlined(value, schema))));
            Value::Object(all)
        }
        other => other.clone(),
    }
}

/// The form of a value for readers.
fn shape(value: &Value) -> String {
    if let Some(name) = value["$ref"].as_str() {
        return named(name.rsplit('/').next().unwrap_or_default()).unwrap_or_default().to_owned();
    }
    if let Some(words) = value["enum"].as_array() {
        let words = words.iter().map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned));
        // Signals and one of the states have two names.
        let long = |word: &String| {
            word.starts_with("SIG")
                || word.contains(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit())
        };
        let words: Vec<String> = words.filter(long).map(|word| format!("`{word}`")).collect();
        return words.join(" ");
    }
    if let Some(any) = value["anyOf"].as_array() {
        let list = any.iter().find(|one| one["type"] == "array");
        let single = any.iter().find(|one| one["type"] != "array").map(shape).unwrap_or_default();
        return if list.is_some() { format!("{single}; or a list") } else { either(any) };
    }
    match (value["type"].as_str(), &value["const"]) {
        (_, Value::Bool(_) | Value::Number(_)) => format!("`{}`", value["const"]),
        (Some("boolean"), _) => "`true` `false`".to_owned(),
        (Some("integer"), _) => "a number".to_owned(),
        (Some("array"), _) if value["prefixItems"].is_array() => "a program and its arguments".to_owned(),
        (Some("array"), _) => format!("a list: {}", shape(&value["items"])),
        (Some("object"), _) if value["properties"]["min"].is_object() => {
            let bound = shape(&value["properties"]["min"]);
            format!("`{{min, max, above, below}}`: {bound}")
        }
        (Some("object"), _) => object(value),
        (Some("string"), _) => text(value["pattern"].as_str().unwrap_or_default()).to_owned(),
        _ => "text".to_owned(),
    }
}

fn either(any: &[Value]) -> String {
    let shapes: Vec<String> = any.iter().map(shape).collect();
    shapes.join(" or ")
}

fn object(value: &Value) -> String {
    let keys = value["properties"].as_object().into_iter().flatten();
    let keys: Vec<&str> = keys.map(|(key, _)| key.as_str()).collect();
    if value["additionalProperties"].is_object() {
        "names and what they stand for".to_owned()
    } else {
        format!("`{{{}}}`", keys.join(", "))
    }
}

/// Returns the text for a kind of value; `None` if its definition is shown instead.
fn named(name: &str) -> Option<&'static str> {
    Some(match name {
        "condition" => "a [condition](#a-condition)",
        "exception" => "a [condition](#a-condition) with a [reason](#an-entry-of-except)",
        "name" => "a name",
        "patterns" => "a [pattern](#values), or a list",
        "samples" => "`{samples: 60}`",
        "selectors" => "selectors of a [condition](#a-condition)",
        "span" => "`5m`, or `{samples: 60}`",
        "step" => "a [step](#a-step)",
        "text" => "text",
        "time" => "`5m`",
        _ => return None,
    })
}

fn text(pattern: &str) -> &'static str {
    if pattern.ends_with("%$") {
        "`5%`"
    } else if pattern.ends_with("B/s$") {
        "`1MiB/s`"
    } else if pattern.ends_with("B$") {
        "`8GiB`"
    } else if pattern.starts_with("^[0-9]{4}") {
        "`2027-01-31`"
    } else {
        "text"
    }
}
