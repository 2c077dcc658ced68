//! What `mps status` tells, for people.

use bailiff_exposition::human::Bytes;
use bailiff_exposition::terminal::{Colors, line, wrapped};

use super::report::{Daemon, Report, Server, State};
use crate::screen;
use crate::table::{Column, Table};

/// Where what is said of a daemon begins.
const INDENT: usize = 15;

/// The report as lines.
pub(super) fn text(report: &Report) -> String {
    let style = (screen::width(), Colors::of_stdout());
    let mut lines = Vec::new();
    if report.daemons.is_empty() {
        lines.push("no MPS daemon runs".to_owned());
    }
    for daemon in &report.daemons {
        lines.extend(of_daemon(daemon, style));
    }
    for orphan in &report.orphans {
        let place = orphan.pipe_dir.as_deref().unwrap_or("-");
        lines.push(format!("server {} of {} without a daemon ({})", orphan.pid, orphan.user, line(place)));
    }
    lines.push(String::new());
    for gpu in &report.gpus {
        let mode = gpu.compute_mode.map_or_else(|| "-".to_owned(), str::to_uppercase);
        lines.push(format!("GPU {:<4} {mode:<18} {}", gpu.index, gpu.uuid.as_deref().unwrap_or("-")));
    }
    if report.gpus.is_empty() {
        lines.push("the driver tells of no GPUs".to_owned());
    }
    for warning in &report.warnings {
        let mut parts = wrapped(&line(warning), style.0.saturating_sub(9)).into_iter();
        lines.push(format!("{} {}", style.1.odd("warning:"), parts.next().unwrap_or_default()));
        lines.extend(parts.map(|part| format!("         {part}")));
    }
    lines.join("\n") + "\n"
}

fn of_daemon(daemon: &Daemon, (width, colors): (usize, Colors)) -> Vec<String> {
    let state = match daemon.state {
        State::Answers => colors.good("answers"),
        State::Hung => colors.bad("does not answer"),
        State::Stale => colors.bad("has ended"),
        State::Unknown => colors.odd("cannot be asked"),
    };
    let place = line(daemon.pipe_dir.as_deref().unwrap_or("an unknown pipe directory"));
    let pid = daemon.pid.map(|pid| format!(" {pid}")).unwrap_or_default();
    let user = daemon.user.as_ref().map(|user| format!(" of {user}")).unwrap_or_default();
    let mut lines = vec![format!("daemon{pid}{user} in {place}: {state}")];
    let mut told = |name: &str, text: &str| {
        let parts = wrapped(&line(text), width.saturating_sub(INDENT));
        for (place, part) in parts.iter().enumerate() {
            let name = if place == 0 { name } else { "" };
            lines.push(format!("  {name:<13}{part}"));
        }
    };
    if let Some(why) = &daemon.why {
        told("why", why);
    }
    if let (Some(directory), Some(log)) = (&daemon.log_dir, daemon.log) {
        told("logs", &format!("{directory}, {log}"));
    }
    if let Some(visible) = &daemon.visible {
        told("GPUs", visible);
    }
    if daemon.answers() {
        told("new clients", &limits(daemon));
    }
    for server in &daemon.servers {
        lines.extend(of_server(server, (width, colors)));
    }
    lines
}

/// What clients of new servers get.
fn limits(daemon: &Daemon) -> String {
    let percent = |percentage: f64| format!("{percentage}% of the multiprocessors");
    let mut parts =
        vec![daemon.default_thread_percentage.map_or_else(|| "a share that is not told".to_owned(), percent)];
    let limits = daemon.default_memory_limits.iter();
    parts.extend(limits.map(|(gpu, bytes)| format!("{} of its GPU {gpu} each", Bytes((*bytes).into()))));
    parts.join(", ")
}

fn of_server(server: &Server, (width, colors): (usize, Colors)) -> Vec<String> {
    let user = server.user.as_deref().unwrap_or("-");
    let share = server.thread_percentage.map(|share| format!(", {share}%")).unwrap_or_default();
    let clients =
        server.clients.as_ref().map_or_else(|| "unknown".to_owned(), |clients| clients.len().to_string());
    let mut lines =
        vec![format!("  server {} of {user}: {}{share}, clients: {clients}", server.pid, server.status)];
    let mut table =
        Table::new(&[("PID", Column::Right), ("USER", Column::Gives), ("COMMAND", Column::Gives)]);
    for client in server.clients.iter().flatten() {
        let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".to_owned());
        let cells = [client.pid.to_string(), word(&client.user), word(&client.command)];
        table.row(cells.into_iter().map(Into::into).collect());
    }
    let rows = table.lines(width.saturating_sub(4), colors);
    lines.extend(rows.into_iter().map(|row| format!("    {row}")));
    lines
}
