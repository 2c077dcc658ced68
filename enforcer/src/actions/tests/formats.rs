//! Tests the bodies of webhooks against what each server documents, with hostile names and long texts.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::subject;
use crate::actions::formats::{body, check};
use crate::actions::message::{Notice, Part};
use bailiff_engine::Kind;
use bailiff_engine::policy::webhook::{Format, Webhook};
use bailiff_engine::policy::{Address, Mode};

/// Texts with which a process, a user or a rule could be named.
const HOSTILE: [&str; 12] = [
    "<!channel> <!here|x> <@U0123> <https://evil.example|bank>",
    "@channel @all @room @here",
    "[click](https://evil.example) ![x](https://evil.example/x.png)",
    "&lt;!channel&gt; &#64;channel &commat;all",
    "\"}], \"text\": \"owned\", \"x\": [{\"",
    "\\\", \"text\": \"owned\\",
    "`code` *bold* ~gone~ \\[x\\](y)",
    "{{ node }} {% endraw %} {# x #}",
    "\u{1b}[2J\u{7}\r\n\u{202e}\u{2028}\u{feff}\u{fdd0}\0",
    "</at><at>everyone</at><img src=x onerror=alert(1)>",
    "1, 2 www.a.example WWW.a.example www2.a.example",
    "",
];

/// A time of RFC 3339.
const TIME: &str = "^[0-9-]{10}T[0-9:.]+Z$";

fn notice(name: &str, is_full: bool) -> Notice {
    let text = |text: &str| is_full.then(|| text.to_owned());
    Notice {
        text: format!("rule {name}: your process ({name}, pid 42)"),
        node: format!("gpu-07{name}"),
        rule: "idle".into(),
        step: "notify".into(),
        target: format!("workload:unit:{name}"),
        user: text(name),
        uid: is_full.then_some(1000),
        gpus: vec!["GPU-1".into(), "GPU-2".into()],
        members: Vec::new(),
        evidence: None,
        when: UNIX_EPOCH + Duration::from_hours(490_896),
        part: Part {
            what: format!("your process ({name}, pid 42)"),
            short: "will be terminated in about 10m".into(),
            found: format!("it holds 40.0GiB of GPU memory; comm is {name}"),
            since: text("2026-01-01T00:00:00Z (3h)"),
            next: "It will be terminated at about 2026-01-01T00:10:00Z".into(),
            keep: text("Use it again, so that what was observed changes."),
            rule: "idle".into(),
            gpus: vec!["GPU-1".into(), "GPU-2".into()],
            notebook: text(&format!("/home/alice/{name}.ipynb")),
        },
        outcome: None,
        about: (Arc::new(subject(Kind::Process, "process:42@7", &[])), Mode::Enforce),
    }
}

fn webhook(format: Format, template: Option<&str>) -> Webhook {
    let address = Address::Url("http://127.0.0.1:1/".into());
    Webhook { address, format, body: template.map(str::to_owned), routing_key_file: None }
}

fn sent(format: Format, template: Option<&str>, notice: &Notice) -> Result<Value, String> {
    body(&webhook(format, template), notice).map(|bytes| serde_json::from_slice(&bytes).expect("JSON"))
}

/// What a server documents, as a JSON Schema.
fn documented(format: Format) -> Value {
    match format {
        // The notification itself, of docs/formats.md.
        Format::Json => {
            json!({"type": "object", "required": ["text", "node", "rule", "step", "target", "when"]})
        }
        Format::Slack => slack(),
        // https://developers.mattermost.com/integrate/webhooks/incoming/#parameters
        Format::Mattermost => object(&["text"], json!({"text": text(16_383)})),
        Format::Teams => teams(),
        // `docs/setup/webhooks.md` of matrix-org/matrix-hookshot: `html` needs `text`.
        Format::Matrix => object(&["text"], json!({"text": text(3000), "html": text(3000)})),
        Format::PagerDuty => pagerduty(),
        Format::Alertmanager => alertmanager(),
    }
}

fn text(most: usize) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": most})
}

/// A closed map, so that a misspelt key is an error.
fn object(required: &[&str], properties: Value) -> Value {
    let mut object = json!({"type": "object", "required": required, "additionalProperties": false});
    object["properties"] = properties;
    object
}

/// `https://docs.slack.dev/reference/block-kit/blocks/section-block` and `.../composition-objects/text-object`; the limits
/// are also in `slack_sdk/models/blocks/blocks.py` of slackapi/python-slack-sdk.
fn slack() -> Value {
    let verbatim = json!({"type": "boolean"});
    let mrkdwn = json!({"type": {"const": "mrkdwn"}, "text": text(3000), "verbatim": verbatim});
    let section = json!({"type": {"const": "section"}, "text": object(&["type", "text"], mrkdwn)});
    let blocks = json!({"type": "array", "maxItems": 50, "items": object(&["type", "text"], section)});
    object(&["text"], json!({"text": text(4000), "mrkdwn": {"type": "boolean"}, "blocks": blocks}))
}

/// `https://learn.microsoft.com/connectors/teams/` (the request body), and `schemas/1.2.0/adaptive-card.json` of
/// microsoft/AdaptiveCards (`AdaptiveCard`, `TextBlock`, `FactSet`, `Fact`).
fn teams() -> Value {
    let weight = json!({"enum": ["default", "lighter", "bolder"]});
    let text_block = json!({
        "type": {"const": "TextBlock"}, "text": text(250), "wrap": {"type": "boolean"}, "weight": weight,
    });
    let fact = object(&["title", "value"], json!({"title": text(250), "value": text(250)}));
    let fact_set = json!({"type": {"const": "FactSet"}, "facts": {"type": "array", "items": fact}});
    let elements = [object(&["type", "text"], text_block), object(&["type", "facts"], fact_set)];
    let card = json!({
        "$schema": {"const": "http://adaptivecards.io/schemas/adaptive-card.json"},
        "type": {"const": "AdaptiveCard"},
        "version": {"const": "1.2"},
        "body": {"type": "array", "items": {"anyOf": elements}},
    });
    let attachment = json!({
        "contentType": {"const": "application/vnd.microsoft.card.adaptive"},
        "contentUrl": {"type": "null"},
        "content": object(&["type", "version", "body"], card),
    });
    let attachment = object(&["contentType", "content"], attachment);
    let attachments = json!({"type": "array", "minItems": 1, "items": attachment});
    object(&["type", "attachments"], json!({"type": {"const": "message"}, "attachments": attachments}))
}

/// `reference/events-v2/openapiv3.json` of PagerDuty/api-schema; lengths of `docs/events-API-v2/02-Trigger-Events.md` of
/// PagerDuty/developer-docs.
fn pagerduty() -> Value {
    let payload = json!({
        "summary": text(1024),
        "source": {"type": "string"},
        "severity": {"enum": ["critical", "error", "warning", "info"]},
        "timestamp": {"type": "string", "pattern": TIME},
        "component": {"type": "string"},
        "class": {"type": "string"},
        "custom_details": {"type": "object"},
    });
    let event = json!({
        "routing_key": {"type": "string", "minLength": 32, "maxLength": 32},
        "event_action": {"const": "trigger"},
        "dedup_key": text(255),
        "client": {"type": "string"},
        "payload": object(&["summary", "source", "severity"], payload),
    });
    object(&["routing_key", "event_action", "payload"], event)
}

/// `postableAlerts` in `api/v2/openapi.yaml` of prometheus/alertmanager.
fn alertmanager() -> Value {
    let labels = json!({
        "type": "object",
        "required": ["alertname"],
        "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
        "additionalProperties": {"type": "string"},
    });
    let annotations = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let time = json!({"type": "string", "pattern": TIME});
    let alert = json!({"labels": labels, "annotations": annotations, "startsAt": time});
    json!({"type": "array", "items": object(&["labels"], alert)})
}

/// Returns the structure of a value: its keys and types.
fn structure(value: &Value) -> Value {
    match value {
        Value::String(_) => json!("text"),
        Value::Array(items) => items.iter().map(structure).collect(),
        Value::Object(keys) => {
            Value::Object(keys.iter().map(|(key, value)| (key.clone(), structure(value))).collect())
        }
        other => other.clone(),
    }
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(keys) => keys.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// Returns the body with the routing key from a file, if the format needs one.
fn complete(format: Format, notice: &Notice) -> Result<Value, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("key");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef\nanother line\n").expect("a file");
    let routing_key_file = (format == Format::PagerDuty).then_some(file);
    let bytes = body(&Webhook { routing_key_file, ..webhook(format, None) }, notice)?;
    assert!(bytes.is_ascii());
    Ok(serde_json::from_slice(&bytes).expect("JSON"))
}

#[test]
fn ready_bodies_have_the_documented_form_whatever_the_names_are() {
    let long = "😀".repeat(20_000);
    for format in Format::ALL {
        let validator = jsonschema::validator_for(&documented(format)).expect("a schema");
        for name in HOSTILE.into_iter().chain(["python3", &long, &"&".repeat(5000)]) {
            for is_full in [true, false] {
                let body = complete(format, &notice(name, is_full)).unwrap();
                let errors: Vec<String> =
                    validator.iter_errors(&body).map(|error| error.to_string()).collect();
                assert!(errors.is_empty(), "{}: {errors:?}: {body:#}", format.name());
            }
        }
    }
}

#[test]
fn forms_that_are_not_documented_are_noticed() {
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Json) {
        let validator = jsonschema::validator_for(&documented(format)).expect("a schema");
        assert!(!validator.is_valid(&json!({"txt": "x"})), "{}", format.name());
    }
}

#[test]
fn hostile_names_change_no_structure_and_mention_and_link_nothing() {
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Json) {
        for name in HOSTILE.into_iter().filter(|name| !name.is_empty()) {
            let (usual, hostile) = (notice("python3", true), notice(name, true));
            let [usual, hostile] = [usual, hostile].map(|notice| complete(format, &notice).unwrap());
            assert_eq!(structure(&usual), structure(&hostile), "{}: {name:?}", format.name());
            for text in texts(&hostile) {
                let shown = format!("{}: {text:?}", format.name());
                let is_forbidden = |letter: char| {
                    letter.is_control() || "\u{202e}\u{2028}\u{feff}\u{fdd0}@".contains(letter)
                };
                assert!(!text.contains(|letter| letter != '\n' && is_forbidden(letter)), "{shown}");
                let text = text.replace("<strong>", "").replace("</strong>", "").replace("<br>", "");
                assert!(!text.contains(['<', '>']), "{shown}");
                let is_schema = text.starts_with("http://adaptivecards.io/");
                let addresses = ["://", "www.", "WWW.", "www2."];
                assert!(is_schema || !addresses.iter().any(|it| text.contains(it)), "{shown}");
                if matches!(format, Format::Mattermost | Format::Matrix | Format::Teams) {
                    assert!(!text.replace("**", "").contains(['[', ']', '&', '`', '*']), "{shown}");
                }
                if format == Format::Slack {
                    let entities =
                        ["&amp;", "&lt;", "&gt;"].iter().fold(text, |text, it| text.replace(it, ""));
                    assert!(!entities.contains('&'), "{shown}");
                }
            }
        }
    }
}

#[test]
fn texts_are_shortened_with_an_ellipsis_and_entities_are_not_cut() {
    let long = Notice { node: "&".repeat(5000), ..notice("python3", true) };
    let body = complete(Format::Slack, &long).unwrap();
    let text = body["text"].as_str().unwrap();
    assert!(text.ends_with("&amp;…") && text.chars().count() <= 4000, "{text}");
    let long = Notice { node: "x".repeat(5000), ..notice("python3", true) };
    let summary = complete(Format::PagerDuty, &long).unwrap()["payload"]["summary"].clone();
    assert_eq!(summary.as_str().map(|text| (text.chars().count(), text.ends_with('…'))), Some((1024, true)));
}

#[test]
fn result_of_an_action_updates_the_alert_of_pagerduty_and_is_another_one_of_alertmanager() {
    let (before, after) =
        (notice("python3", true), Notice { step: "terminate".into(), ..notice("python3", true) });
    let other = Notice { target: "process:43@7".into(), ..notice("python3", true) };
    let key = |notice: &Notice| complete(Format::PagerDuty, notice).unwrap()["dedup_key"].clone();
    assert_eq!(key(&before), key(&after));
    assert_ne!(key(&before), key(&other));
    let labels = |notice: &Notice| complete(Format::Alertmanager, notice).unwrap()[0]["labels"].clone();
    assert_ne!(labels(&before), labels(&after));
}

#[test]
fn own_templates_are_checked_as_they_are_used() {
    for (template, why) in [
        (r#"{"text": "{{ notice.what }} of {{ user }} on {{ node }}", "pids": [1]}"#, ""),
        (
            r#"{"text": "{{ notice.gpus|join(', ') }}"{% if notice.uid %}, "uid": {{ notice.uid }}{% endif %}}"#,
            "",
        ),
        (
            r#"["{{ notice.text }}", "{{ notice.step }}", "{{ notice.target }}", "{{ notice.when }}", "{{ notice.id }}"]"#,
            "",
        ),
        ("{\"text\":\n\"{{ notice.nothing }}\"}", "undefined value (line 2 of the template)"),
        (r#"{"text": "{{ node""#, "syntax error"),
        ("plain text", "the result is not JSON"),
        (
            r#"{"text": {{ notice.what }}}"#,
            "the result is not JSON, in which each value is a part of a string",
        ),
        (r#"{"{{ notice.what }}": 1}"#, "a value cannot be a part of a key"),
        (r#"{"uid": {{ notice.uid }}}"#, "the result is not JSON"),
        (r#"{"gpus": "{{ notice.gpus }}"}"#, "for a list, use `join`"),
        (r#"{"text": "{{ notice.what|safe }}", "x": {{ notice.what|safe }}}"#, "the result is not JSON"),
        (r#"{% autoescape false %}{"x": {{ notice.what }}}{% endautoescape %}"#, "the result is not JSON"),
    ] {
        let found = check(Format::Json, template).err().unwrap_or_default();
        assert!(found.contains(why) && found.is_empty() == why.is_empty(), "{template}: {found:?}");
    }
}

#[test]
fn template_that_fails_for_a_notification_has_a_reason() {
    // The check does not know how many GPUs there are.
    let template = r#"{"text": "x{% if notice.gpus %}{{ notice.gpus[7].name }}{% endif %}"}"#;
    assert_eq!(check(Format::Slack, template), Ok(()));
    let why = sent(Format::Slack, Some(template), &notice("python3", true)).unwrap_err();
    assert!(why.contains("undefined value") && why.contains("line 1 of the template"), "{why}");
    let large = format!(r#"{{"text": "x", "more": "{}"}}"#, "x".repeat(600_000));
    let why = sent(Format::Slack, Some(&large), &notice("python3", true)).unwrap_err();
    assert!(why.contains("the server accepts 512000"), "{why}");
}

#[test]
fn routing_key_that_cannot_be_read_is_a_failure() {
    let webhook =
        Webhook { routing_key_file: Some("/nonexistent/key".into()), ..webhook(Format::PagerDuty, None) };
    let why = body(&webhook, &notice("python3", true)).unwrap_err();
    assert_eq!(why, "cannot read the file with the routing key");
}

proptest! {
    #[test]
    fn no_name_changes_the_structure_of_an_own_body(name in any::<String>(), user in ".*") {
        let template = r#"{"a": "{{ notice.what }}", "b": ["{{ user }}{{ node }}"], "c": {"d": "x{{ notice.found|upper }}"}}"#;
        for format in Format::ALL {
            let hostile = Notice { user: Some(user.clone()), ..notice(&name, true) };
            let sent = sent(format, Some(template), &hostile);
            prop_assert_eq!(sent.map(|body| structure(&body)), Ok(json!({"a": "text", "b": ["text"], "c": {"d": "text"}})));
        }
    }
}
