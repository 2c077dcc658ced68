//! Text output of `bailiff mps status`.

use bailiff_exposition::human::Bytes;
use bailiff_exposition::terminal::{Cell, Colors, Column, Table, line, wrapped};

use super::report::{Client, Daemon, MpsReport, Server, State};
use crate::screen;

/// Column at which the values of a daemon begin.
const INDENT: usize = 15;

type ClientColumn = (&'static str, Column, fn(&&Client) -> Cell);
const CLIENTS: [ClientColumn; 3] = [
    ("PID", Column::Right, |client| client.pid.to_string().into()),
    ("USER", Column::To(6), |client| client.user.as_deref().unwrap_or("-").into()),
    ("COMMAND", Column::To(6), |client| client.command.as_deref().unwrap_or("-").into()),
];

/// Renders the report as text.
pub(super) fn render(report: &MpsReport) -> String {
    let style = (screen::width(), Colors::of_stdout());
    let mut lines = Vec::new();
    if report.daemons.is_empty() {
        lines.push("no MPS daemon is running".to_owned());
    }
    for daemon in &report.daemons {
        lines.extend(daemon_lines(daemon, style));
    }
    for orphan in &report.orphans {
        let pipes = orphan.pipe_dir.as_deref().unwrap_or("-");
        lines.push(format!("server {} of {} without a daemon ({})", orphan.pid, orphan.user, line(pipes)));
    }
    lines.push(String::new());
    for gpu in &report.gpus {
        let mode = gpu.compute_mode.map_or_else(|| "-".to_owned(), str::to_uppercase);
        lines.push(format!("GPU {:<4} {mode:<18} {}", gpu.index, gpu.uuid.as_deref().unwrap_or("-")));
    }
    if report.gpus.is_empty() {
        lines.push("the driver reports no GPUs".to_owned());
    }
    for warning in &report.warnings {
        let mut parts = wrapped(&line(warning), style.0.saturating_sub(9)).into_iter();
        lines.push(format!("{} {}", style.1.odd("warning:"), parts.next().unwrap_or_default()));
        lines.extend(parts.map(|part| format!("         {part}")));
    }
    lines.join("\n") + "\n"
}

fn daemon_lines(daemon: &Daemon, (width, colors): (usize, Colors)) -> Vec<String> {
    let state = match daemon.state {
        State::Answers => colors.good("answers"),
        State::Hung => colors.bad("does not respond"),
        State::Stale => colors.bad("has exited"),
        State::Unknown => colors.odd("cannot be queried"),
    };
    let pipes = line(daemon.pipe_dir.as_deref().unwrap_or("unknown pipe directory"));
    let pid = daemon.pid.map(|pid| format!(" {pid}")).unwrap_or_default();
    let user = daemon.user.as_ref().map(|user| format!(" of {user}")).unwrap_or_default();
    let mut lines = vec![format!("daemon{pid}{user} in {pipes}: {state}")];
    let mut add = |name: &str, text: &str| {
        let parts = wrapped(&line(text), width.saturating_sub(INDENT));
        for (number, part) in parts.iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            lines.push(format!("  {name:<13}{part}"));
        }
    };
    if let Some(why) = &daemon.why {
        add("why", why);
    }
    if let (Some(directory), Some(log)) = (&daemon.log_dir, daemon.log) {
        add("logs", &format!("{directory}, {log}"));
    }
    if let Some(visible) = &daemon.visible {
        add("GPUs", visible);
    }
    if daemon.answers() {
        add("new clients", &limits(daemon));
    }
    for server in &daemon.servers {
        lines.extend(server_lines(server, (width, colors)));
    }
    lines
}

/// Returns the limits of clients of new servers as text.
fn limits(daemon: &Daemon) -> String {
    let percent = |percentage: f64| format!("{percentage}% of the multiprocessors");
    let mut parts = vec![
        daemon
            .default_thread_percentage
            .map_or_else(|| "an unknown share of the multiprocessors".to_owned(), percent),
    ];
    let limits = daemon.default_memory_limits.iter();
    parts.extend(
        limits.map(|(gpu, bytes)| format!("{} each on the daemon's GPU {gpu}", Bytes((*bytes).into()))),
    );
    parts.join(", ")
}

fn server_lines(server: &Server, (width, colors): (usize, Colors)) -> Vec<String> {
    let user = server.user.as_deref().unwrap_or("-");
    let share = server.thread_percentage.map(|share| format!(", {share}%")).unwrap_or_default();
    let clients =
        server.clients.as_ref().map_or_else(|| "unknown".to_owned(), |clients| clients.len().to_string());
    let mut lines =
        vec![format!("  server {} of {user}: {}{share}, clients: {clients}", server.pid, server.status)];
    let clients = server.clients.iter().flatten();
    let rows = Table::of(&CLIENTS, clients).lines(width.saturating_sub(4), colors);
    lines.extend(rows.into_iter().map(|row| format!("    {row}")));
    lines
}
