//! The JSON Schema of a rules file, for editors: the parser's keys, with selectors and attributes. Only `check`
//! detects undefined names, steps that do not fit a kind of target, and periods that are too short.

use serde_json::{Map, Value, json};

use super::Field;
use super::comparisons::{BOUNDS, LETTERS};
use super::keys::SCHEMA;
use crate::attributes::{self, Attribute};
use crate::value::Unit;

/// Returns the JSON Schema (2020-12) of a rules file.
pub fn schema() -> Value {
    let mut schema: Value = serde_json::from_str(SCHEMA).unwrap_or_default();
    schema["title"] = json!("Rules of GPU Bailiff");
    let selectors: Map<String, Value> = Field::ALL
        .iter()
        .map(|field| (field.name().to_owned(), described(reference("patterns"), field.about())))
        .collect();
    let attributes = attributes::ALL.iter().map(|attribute| {
        let kinds: Vec<&str> = attribute.of.iter().map(|kind| kind.name()).collect();
        let help = format!("{} Available for: {}.", attribute.help, kinds.join(", "));
        (attribute.name.to_owned(), described(comparison(attribute), &help))
    });
    let mut condition = selectors.clone();
    condition.extend(attributes);
    condition.extend(schema["$defs"]["condition"]["properties"].as_object().cloned().unwrap_or_default());
    for (map, keys) in [("selectors", &selectors), ("condition", &condition), ("exception", &condition)] {
        for (name, key) in keys {
            schema["$defs"][map]["properties"][name] = key.clone();
        }
    }
    schema
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

fn described(mut schema: Value, help: &str) -> Value {
    schema["description"] = json!(help);
    schema
}

fn comparison(attribute: &Attribute) -> Value {
    let number = match attribute.unit {
        Unit::Flag => return json!({"type": "boolean"}),
        Unit::Words(words) => {
            let letters = LETTERS.iter().filter(|(_, word)| words.contains(word));
            let all = words.iter().copied().chain(letters.map(|(letter, _)| *letter));
            // YAML reads a word such as `31` as a number.
            let all: Vec<Value> = all
                .map(|word| word.parse().map_or_else(|_| json!(word), |number: u64| json!(number)))
                .collect();
            let word = json!({"enum": all});
            return json!({"anyOf": [word, {"type": "array", "items": word, "minItems": 1}]});
        }
        Unit::Percent => reference("percent"),
        Unit::Bytes => reference("bytes"),
        Unit::BytesPerSecond => reference("rate"),
        Unit::Duration => reference("time"),
        Unit::Count => reference("count"),
    };
    let bounds = BOUNDS.map(|(name, help)| (name.to_owned(), described(number.clone(), help)));
    json!({
        "type": "object",
        "properties": Map::from_iter(bounds),
        "additionalProperties": false,
        "minProperties": 1,
        "maxProperties": 2,
    })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the schema and the cases are files")]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::Kind;
    use crate::policy::steps::SIGNALS;
    use crate::policy::{Mode, Order, Severity};
    use crate::yaml::{self, Data, Node};

    /// Returns a file as an editor sees it; `None` if the parser does not accept its YAML.
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
        let (root, faults) = yaml::read(bytes, "", "").ok()?;
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
    fn words_of_the_grammar_are_those_of_the_policy() {
        let schema = schema();
        let words = |map: &str, key: &str| schema["$defs"][map]["properties"][key].clone();
        assert_eq!(schema["properties"]["mode"]["enum"], json!(Mode::ALL.map(Mode::name)));
        assert_eq!(words("rule", "mode")["enum"], json!(Mode::ALL.map(Mode::name)));
        assert_eq!(words("rule", "target")["enum"], json!(Kind::ALL.map(Kind::name)));
        assert_eq!(words("pick", "order")["items"]["enum"], json!(Order::ALL.map(Order::name)));
        assert_eq!(words("step", "flag")["enum"], json!(Severity::ALL.map(Severity::name)));
        let short = |signal: &'static str| signal.strip_prefix("SIG").unwrap();
        let signals = SIGNALS.iter().flat_map(|signal| [signal.name, short(signal.name)]);
        assert_eq!(words("step", "signal")["enum"], json!(signals.collect::<Vec<_>>()));
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

    /// A schema cannot check names, kinds, windows and order; an editor marks all other errors as the parser does.
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
            "57-evict-pod-alone",
            "58-keep-annotation",
            "59-keep-max-alone",
            "60-keep-without-end",
            "61-keep-annotation-of-kubernetes",
            "62-stop-owner-alone",
        ];
        let validator = jsonschema::validator_for(&schema()).unwrap();
        for (name, bytes) in files("tests/bad") {
            if let Some(file) = seen_by_an_editor(&bytes) {
                assert_eq!(validator.is_valid(&file), beyond.contains(&name.as_str()), "{name}");
            }
        }
    }
}
