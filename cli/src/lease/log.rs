//! `bailiff lease log`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_lease::log::Event;
use serde_json::{Map, Value};

use super::flags;
use super::format::time;
use super::redis;
use crate::exit::Failure;
use crate::output::{escaped, json};

/// The maximum wait for new events per Redis query.
const INTERVAL: Duration = Duration::from_secs(10);

/// Prints the event log.
pub(crate) fn log(flags: &flags::Log) -> Result<ExitCode, Failure> {
    let mut pool = redis(&flags.pool, "keeps no log")?;
    let mut events = pool.events(flags.lines.max(1))?;
    // `--follow` needs the newest event even if no past events are printed.
    let mut last = events.last().map_or_else(|| "0-0".to_owned(), |event| event.id.clone());
    if flags.lines == 0 {
        events.clear();
    }
    loop {
        let mut out = std::io::stdout().lock();
        for event in &events {
            let text = if flags.json { json(&as_json(event))? } else { line(event) + "\n" };
            if out.write_all(text.as_bytes()).is_err() {
                // The reader has closed the pipe.
                return Ok(ExitCode::SUCCESS);
            }
        }
        drop(out);
        if !flags.follow {
            return Ok(ExitCode::SUCCESS);
        }
        events = pool.events_after(&last, INTERVAL)?;
        if let Some(event) = events.last() {
            last.clone_from(&event.id);
        }
    }
}

fn line(event: &Event) -> String {
    let when = event.at().and_then(time).unwrap_or_else(|| escaped(&event.id));
    let about: Vec<String> =
        event.about.iter().map(|(field, value)| format!(" {}={}", escaped(field), escaped(value))).collect();
    format!("{when} {}{}", escaped(&event.what), about.concat())
}

fn as_json(event: &Event) -> Value {
    let mut object = Map::new();
    object.insert("time".to_owned(), event.at().and_then(time).into());
    object.insert("event".to_owned(), event.what.clone().into());
    for (field, value) in &event.about {
        object.insert(field.clone(), value.clone().into());
    }
    Value::Object(object)
}
