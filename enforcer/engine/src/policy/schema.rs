//! The JSON Schema of a rules file, for editors; generated from the parser's tables. Only `check` detects
//! undefined names, steps that do not fit a kind of target, and periods that are too short.

use serde_json::{Map, Value, json};

use super::Field;
use super::comparisons::{BOUNDS, LETTERS};
use super::condition_parser::WORDS;
use super::keys::{EXCEPTION, FILE, Key, KeyTable, Need, STEP, Shape};
use crate::attributes::{self, Attribute};
use crate::value::Unit;

const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$";
const PERCENT: &str = "^[0-9]+(\\.[0-9]+)?\\s*%$";
const BYTES: &str = "^[0-9]+(\\.[0-9]+)?\\s*([KMGT]i)?B$";
const RATE: &str = "^[0-9]+(\\.[0-9]+)?\\s*([KMGT]i)?B/s$";
const TIME: &str = "^\\s*([0-9]+(\\.[0-9]+)?\\s*(nanos|nsec|ns|usec|us|µs|millis|msec|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|wks?|w)\\s*)+$";

/// Returns the JSON Schema (2020-12) of a rules file.
#[must_use]
pub fn schema() -> Value {
    let mut schema = table(&FILE);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Rules of GPU Bailiff");
    schema["$defs"] = json!({
        "name": {"type": ["string", "number"], "pattern": NAME},
        "text": {"type": ["string", "number"], "minLength": 1},
        "time": {"type": "string", "pattern": TIME},
        "span": {"anyOf": [{"$ref": "#/$defs/time"}, {"$ref": "#/$defs/samples"}]},
        "samples": {
            "type": "object",
            "properties": {"samples": {"type": "integer", "minimum": 0}},
            "required": ["samples"],
            "additionalProperties": false,
        },
        "patterns": many(&json!({"type": ["string", "number"], "minLength": 1, "maxLength": 1024})),
        "condition": condition(&[]),
        "exception": exception(),
        "selectors": closed(&selectors(), &[]),
        "step": step(),
    });
    schema
}

fn table(table: &KeyTable) -> Value {
    let properties: Map<String, Value> = table.keys.iter().map(property).collect();
    let must: Vec<&str> =
        table.keys.iter().filter(|key| key.need == Need::Must).map(|key| key.name).collect();
    closed(&properties, &must)
}

fn closed(properties: &Map<String, Value>, must: &[&str]) -> Value {
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !must.is_empty() {
        schema["required"] = json!(must);
    }
    schema
}

fn property(key: &Key) -> (String, Value) {
    (key.name.to_owned(), described(shape(key.shape), key.help))
}

fn described(mut schema: Value, help: &str) -> Value {
    schema["description"] = json!(help);
    schema
}

fn shape(shape: Shape) -> Value {
    match shape {
        Shape::Version => json!({"const": 1}),
        Shape::Flag => json!({"type": "boolean"}),
        Shape::True => json!({"const": true}),
        Shape::Count => json!({"type": "integer", "minimum": 0}),
        Shape::Share => json!({"type": "string", "pattern": PERCENT}),
        Shape::Text => reference("text"),
        Shape::Name => reference("name"),
        Shape::Time => reference("time"),
        Shape::Span => reference("span"),
        Shape::Samples => json!({"anyOf": [{"type": "integer", "minimum": 1}, {"$ref": "#/$defs/span"}]}),
        Shape::Date => json!({"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
        Shape::Word(words) => json!({"enum": words()}),
        Shape::Map(keys) => table(keys),
        Shape::OneOf(keys) => only_one(keys),
        Shape::Named(item) => {
            json!({"type": "object", "propertyNames": {"pattern": NAME}, "additionalProperties": self::shape(*item)})
        }
        Shape::List(item) => json!({"type": "array", "items": self::shape(*item), "minItems": 1}),
        Shape::Many(item) => many(&self::shape(*item)),
        Shape::Program => json!({
            "type": "array",
            "prefixItems": [{"type": "string", "pattern": "^/"}],
            "items": {"type": ["string", "number", "boolean"]},
            "minItems": 1,
        }),
        Shape::Condition => reference("condition"),
        Shape::Selectors => json!({"anyOf": [
            reference("selectors"),
            {"type": "array", "items": reference("exception"), "minItems": 1},
        ]}),
        Shape::Exception => reference("exception"),
        Shape::Step => reference("step"),
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

fn many(item: &Value) -> Value {
    json!({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]})
}

fn only_one(keys: &KeyTable) -> Value {
    let mut schema = table(keys);
    schema["minProperties"] = json!(1);
    schema["maxProperties"] = json!(1);
    schema
}

/// Schema of a step: `after`, and one action.
fn step() -> Value {
    let mut schema = table(&STEP);
    let actions = STEP.keys.iter().filter(|key| key.name != "after");
    schema["oneOf"] = actions.map(|key| json!({"required": [key.name]})).collect();
    schema
}

fn selectors() -> Map<String, Value> {
    Field::ALL
        .iter()
        .map(|field| (field.name().to_owned(), described(reference("patterns"), field.help())))
        .collect()
}

/// Schema of a condition with additional keys.
fn condition(besides: &[Key]) -> Value {
    let mut properties = selectors();
    properties.extend(attributes::ALL.iter().map(|attribute| {
        let kinds: Vec<&str> = attribute.of.iter().map(|kind| kind.name()).collect();
        let help = format!("{} Available for: {}.", attribute.help, kinds.join(", "));
        (attribute.name.to_owned(), described(comparison(attribute), &help))
    }));
    properties.extend(WORDS.map(|(word, help)| {
        let shape = match word {
            "use" => many(&reference("name")),
            "not" => reference("condition"),
            _ => json!({"type": "array", "items": reference("condition"), "minItems": 1}),
        };
        (word.to_owned(), described(shape, help))
    }));
    properties.extend(besides.iter().map(property));
    let must: Vec<&str> = besides.iter().filter(|key| key.need == Need::Must).map(|key| key.name).collect();
    let mut schema = closed(&properties, &must);
    schema["minProperties"] = json!(1 + must.len());
    schema
}

fn exception() -> Value {
    condition(EXCEPTION.keys)
}

fn comparison(attribute: &Attribute) -> Value {
    let number = match attribute.unit {
        Unit::Flag => return json!({"type": "boolean"}),
        Unit::Words(words) => {
            let letters = LETTERS.iter().filter(|(_, word)| words.contains(word));
            let all: Vec<&str> = words.iter().copied().chain(letters.map(|(letter, _)| *letter)).collect();
            return many(&json!({"enum": all}));
        }
        Unit::Percent => json!({"type": "string", "pattern": PERCENT}),
        Unit::Bytes => json!({"type": "string", "pattern": BYTES}),
        Unit::BytesPerSecond => json!({"type": "string", "pattern": RATE}),
        Unit::Duration => reference("time"),
        Unit::Count => json!({"type": "integer", "minimum": 0}),
    };
    let bounds = BOUNDS.map(|(name, help)| (name.to_owned(), described(number.clone(), help)));
    let mut schema = closed(&bounds.into_iter().collect(), &[]);
    schema["minProperties"] = json!(1);
    schema["maxProperties"] = json!(2);
    schema
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the schema and the cases are files")]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::policy::fault::Faults;
    use crate::policy::tree::{self, Data, Node};

    /// A file as an editor sees it; none if it is not YAML as we take it.
    fn seen_by_an_editor(bytes: &[u8]) -> Option<Value> {
        fn value(node: &Node) -> Value {
            match &node.data {
                _ if node.is_null() => Value::Null,
                Data::Scalar { text, plain: true } => match text.as_str() {
                    "true" => json!(true),
                    "false" => json!(false),
                    _ => match (text.parse::<i64>(), text.parse::<f64>()) {
                        (Ok(number), _) => json!(number),
                        (_, Ok(number)) if number.is_finite() => json!(number),
                        _ => json!(text),
                    },
                },
                Data::Scalar { text, .. } => json!(text),
                Data::List(items) => items.iter().map(value).collect(),
                Data::Map(entries) => entries
                    .iter()
                    .map(|entry| (entry.name.clone(), value(&entry.value)))
                    .collect::<Map<_, _>>()
                    .into(),
                Data::Refused => Value::Null,
            }
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let mut faults = Faults::none("", text);
        let root = tree::parse(text, &mut faults)?;
        (faults.errors() == 0).then(|| value(&root))
    }

    fn files(directory: &str) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)).unwrap();
        let paths = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "yaml"));
        let name = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut files: Vec<_> = paths.map(|path| (name(&path), fs::read(path).unwrap())).collect();
        files.sort();
        files
    }

    #[test]
    fn the_schema_that_is_shipped_is_this_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/rules.schema.json");
        let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "config/rules.schema.json is not what the tables say: UPDATE_GOLDEN=1 renews it"
        );
    }

    #[test]
    fn the_schema_is_a_schema_and_takes_every_good_file() {
        jsonschema::meta::validate(&schema()).unwrap();
        let validator = jsonschema::validator_for(&schema()).unwrap();
        for directory in ["../../config", "../../config/rules", "tests/good"] {
            for (name, bytes) in files(directory) {
                let file = seen_by_an_editor(&bytes).unwrap();
                let faults: Vec<String> = validator
                    .iter_errors(&file)
                    .map(|error| format!("{}: {error}", error.instance_path()))
                    .collect();
                assert!(faults.is_empty(), "{directory}/{name}: {faults:#?}");
            }
        }
    }

    /// Names, kinds, windows and order are beyond a schema; all else an editor marks as the reader does.
    #[test]
    fn schema_refuses_invalid_files() {
        let beyond = [
            "24-attribute-of-another-kind",
            "26-conditions-in-a-circle",
            "32-steps-out-of-order",
            "33-steps-of-another-kind",
            "36-too-short",
            "37-too-short-for-the-interval",
            "50-patterns-that-never-match",
        ];
        let validator = jsonschema::validator_for(&schema()).unwrap();
        for (name, bytes) in files("tests/bad") {
            if let Some(file) = seen_by_an_editor(&bytes) {
                assert_eq!(validator.is_valid(&file), beyond.contains(&name.as_str()), "{name}");
            }
        }
    }
}
