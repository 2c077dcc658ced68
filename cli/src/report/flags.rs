//! The flags of `bailiff report`.

use std::path::PathBuf;

use clap::Args;

use crate::args::PrometheusLogin;

/// The flags of `report`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Report {
    /// Start of the period: an age such as 7d, or a time such as 2026-03-01T00:00:00Z.
    ///
    /// The period has at least 10 minutes and at most 366 days. Both ends are rounded down to 5 minutes.
    #[arg(long, value_name = "TIME", default_value = "7d")]
    pub(super) since: String,
    /// End of the period: an age or a time.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub(super) until: String,
    /// Print CSV.
    #[arg(long, group = "format")]
    pub(super) csv: bool,
    /// Print JSON.
    #[arg(long, group = "format")]
    pub(super) json: bool,
    /// Write a page with charts to this file.
    ///
    /// The page has no scripts and needs no other files.
    #[arg(long, value_name = "FILE", group = "format")]
    pub(super) html: Option<PathBuf>,
    /// File with teams of users, in the format of /etc/group; sums for each team are added.
    ///
    /// getent group prints the groups of a machine in this format, without the users whose primary group it is.
    #[arg(long, value_name = "FILE")]
    pub(super) teams: Option<PathBuf>,
    /// Address of the Prometheus server, such as `http://prometheus:9090`; https is supported.
    #[arg(long, value_name = "URL")]
    pub(super) prometheus: String,
    #[command(flatten)]
    pub(super) login: PrometheusLogin,
}

const EXAMPLES: &str = "Examples:
  bailiff report --prometheus http://prometheus:9090
                                             GPU-hours of each user in the last 7 days
  bailiff report --since 30d --prometheus http://prometheus:9090 --html report.html
                                             a page with charts
  getent group > groups; bailiff report --prometheus http://prometheus:9090 --teams groups
                                             the same for each group of users
  bailiff report --since 2026-02-01T00:00:00Z --until 2026-03-01T00:00:00Z \\
      --prometheus https://prometheus.example --token-file token --csv > february.csv

The time for which a user held GPUs is the sum of used, idle and unknown time. Unknown is time
in which no use was observed, but idleness was not observed either, and time without data.

Exit codes: 0: success; 1: the report cannot be written; 64: invalid flags; 69: Prometheus does
not respond, or has no data.";
