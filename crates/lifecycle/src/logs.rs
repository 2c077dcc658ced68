//! Logs: one line per event on stderr.

use std::io;

use clap::ValueEnum;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

/// Format of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// `level=info message=…`
    #[default]
    Logfmt,
    /// One JSON object.
    Json,
}

/// Minimum level of logged events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Errors.
    Error,
    /// Errors and warnings.
    Warn,
    /// Errors, warnings, and information for administrators.
    #[default]
    Info,
    /// Errors, warnings, and information for administrators and developers.
    Debug,
    /// All events, including those from libraries.
    Trace,
}

/// Flags of the log.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct LogFlags {
    /// Minimum level of logged events.
    #[arg(long = "log.level", value_name = "LEVEL", value_enum, default_value_t)]
    pub level: Level,
    /// Format of log lines, which go to stderr.
    #[arg(long = "log.format", value_name = "FORMAT", value_enum, default_value_t)]
    pub format: Format,
}

/// Starts logging. A second call has no effect.
pub fn start(flags: LogFlags) {
    let subscriber =
        tracing_subscriber::registry().with(lines(flags.format).with_filter(filter(flags.level)));
    // Fails if logging was started before.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

fn lines<S>(format: Format) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    match format {
        Format::Json => layer.json().flatten_event(true).with_target(false).boxed(),
        Format::Logfmt => {
            tracing_logfmt::builder().with_target(false).layer().with_writer(io::stderr).boxed()
        }
    }
}

fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}
