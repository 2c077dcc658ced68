//! `bailiff report`: what each user held, used and left idle, from the exporters' data in Prometheus.

#![expect(clippy::disallowed_methods, reason = "reads the clock, and writes the page of --html")]

mod csv;
pub(crate) mod flags;
mod html;
mod query;
mod rows;
mod teams;
mod text;
mod tracked;
mod usage;
mod window;

use std::io;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use bailiff_exposition::terminal::{Colors, line};
use bailiff_lifecycle::exit::plain;
use bailiff_prometheus::Api;

use self::flags::Report;
use self::query::{Parts, targets};
use self::rows::Rows;
use self::teams::Teams;
use self::usage::Usage;
use self::window::Window;
use crate::exit::{Failure, succeed};
use crate::prometheus::instance;
use crate::{output, screen};

/// Maximum number of names in a note.
const MOST_NAMES: usize = 10;

/// Prints the report.
pub(crate) fn report(flags: &Report) -> Result<ExitCode, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let window = Window::new((&flags.since, &flags.until), now).map_err(Failure::usage)?;
    let teams = flags.teams.as_deref().map(Teams::read).transpose().map_err(Failure::usage)?;
    let mut api = flags.login.open(&flags.prometheus)?;
    let rows = collect(&mut api, window, &teams.unwrap_or_default())?;
    if let Some(path) = &flags.html {
        std::fs::write(path, html::html(&rows)).map_err(|error| {
            let why = format!("cannot write {}: {}", path.display(), plain(&error));
            Failure::from(io::Error::new(error.kind(), why))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if flags.csv {
        rows.notes.iter().for_each(|note| output::print_message(format_args!("note: {note}")));
    }
    succeed(&if flags.json {
        output::json(&rows)?
    } else if flags.csv {
        csv::csv(&rows)
    } else {
        text::text(&rows, screen::width(), Colors::of_stdout())
    })
}

fn collect(api: &mut Api, window: Window, teams: &Teams) -> Result<Rows, Failure> {
    let mut usage = Usage::new(window);
    let mut parts = Parts::new(window);
    while let Some(part) = parts.next(api)? {
        usage.add(&part);
    }
    if usage.nodes.is_empty() {
        return Err(Failure::unavailable(
            "Prometheus has no bailiff_snapshots_total in this period; check that it scrapes bailiff-exporter",
        ));
    }
    let notes = notes(&usage, api, window)?;
    Ok(Rows::new(&usage, teams, window, notes))
}

/// Returns what a reader has to know about the data.
fn notes(usage: &Usage, api: &mut Api, window: Window) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    let silent: Vec<String> = targets(api, window)?
        .iter()
        .filter(|target| !usage.knows(target))
        .map(|target| instance(target).to_owned())
        .collect();
    if !silent.is_empty() {
        notes.push(format!("no data at all: {}, so its GPUs are in no sum", names(&silent)));
    }
    let repeated: Vec<String> = usage.repeated().into_iter().map(str::to_owned).collect();
    if !repeated.is_empty() {
        notes.push(format!(
            "scraped with different target labels, and counted more than once: {}",
            names(&repeated)
        ));
    }
    let without: Vec<String> = usage.without_enforcer().into_iter().map(str::to_owned).collect();
    if !without.is_empty() && usage.has_enforcer() {
        notes.push(format!(
            "notices, terminations and reclaimed memory are unknown where no bailiff-enforcer is scraped: {}",
            names(&without)
        ));
    }
    if !usage.has_enforcer() {
        notes.push(
            "notices, terminations and reclaimed memory are unknown: no bailiff-enforcer is scraped"
                .to_owned(),
        );
    } else if usage.enforcer_gaps > 0.0 {
        notes.push(format!(
            "notices, terminations and reclaimed memory may be incomplete: {:.1} hours without data of bailiff-enforcer",
            usage.enforcer_gaps / 3600.0
        ));
    }
    notes.extend(api.warnings.iter().map(|warning| format!("Prometheus warns: {}", line(warning))));
    Ok(notes)
}

fn names(names: &[String]) -> String {
    let shown = output::joined(names.iter().take(MOST_NAMES).map(|name| line(name)), ", ");
    match names.len().checked_sub(MOST_NAMES) {
        Some(more @ 1..) => format!("{shown} and {more} more"),
        _ => shown,
    }
}
