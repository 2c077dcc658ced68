//! The command line of `info`, as it is written.

use std::time::Duration;

use clap::{Args, Parser};

use super::figures::Units;
use crate::flags::{Exporter, Machine, Pool};

/// Longer names are no names.
const LONGEST_TAG: usize = 64;

/// Show each GPU and each process that holds its memory
///
/// One line for each GPU and one for each holder; --full prints the long report. A value that was not observed is shown as ?
/// (in the long report as -) and never as 0. bailiff-exporter is asked if it runs, because it knows for how long each holder
/// has been idle; otherwise the driver and /proc are read twice, a second apart.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Info {
    /// Names this report, and keeps it under that name for --since.
    #[arg(long, value_name = "TAG", value_parser = tag)]
    pub(crate) tag: Option<String>,
    /// Compares with the report that was kept under this name.
    #[arg(long, value_name = "TAG", value_parser = tag, conflicts_with = "watch")]
    pub(crate) since: Option<String>,
    /// These GPUs alone, by number or UUID, such as 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) gpu: Vec<String>,
    /// Print the long report: where the memory of each GPU is, each holder, and what each user holds.
    #[arg(long)]
    pub(crate) full: bool,
    /// Print the long report and the processes that have the device file of each GPU open, listed by the driver or not.
    #[arg(long)]
    pub(crate) who: bool,
    /// Show at most N holders of each GPU, those with the most memory, and the sum of the rest [default: 10, or as many as
    /// fit on the terminal].
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Print JSON, one object for each report.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print each new sample until Ctrl-C; on a terminal it is redrawn in place.
    #[arg(long)]
    pub(crate) watch: bool,
    /// How sizes are written.
    #[arg(skip)]
    pub(crate) units: Units,
    #[command(flatten)]
    pub(crate) look: Look,
}

/// Where to look.
#[derive(Debug, Args)]
pub(crate) struct Look {
    #[command(flatten)]
    pub(crate) exporter: Exporter,
    /// Looks itself, though an exporter runs.
    #[arg(long)]
    pub(crate) alone: bool,
    /// The time between two looks of its own.
    #[arg(long, value_name = "TIME", value_parser = crate::flags::span, default_value = "1s")]
    pub(crate) interval: Duration,
    /// How long the driver may take to open; seconds, without persistence mode.
    #[arg(long, value_name = "TIME", value_parser = crate::flags::span, default_value = "30s")]
    pub(crate) deadline: Duration,
    #[command(flatten)]
    pub(crate) machine: Machine,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// The command line under the names of the script whose report this is.
#[derive(Debug, Parser)]
#[command(name = "cuda_info.sh", version)]
pub(crate) struct Called {
    #[command(flatten)]
    pub(crate) info: Info,
    /// Changes nothing, as in the script.
    #[arg(short = 'v', long = "verbose", hide = true)]
    _verbose: bool,
}

/// A name that is a file's as well.
fn tag(text: &str) -> Result<String, String> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    if text.is_empty() || text.len() > LONGEST_TAG || text.starts_with('.') || !text.chars().all(plain) {
        return Err("a tag is at most 64 letters, digits, dots, dashes and underscores".to_owned());
    }
    Ok(text.to_owned())
}

const EXAMPLES: &str = "Examples:
  bailiff info                               who holds my memory?
  bailiff info --full                        the long report, with what each user holds
  bailiff info --gpu 3 --who                 and who has GPU 3 open without being listed
  bailiff info --tag before                  keeps the report under that name
  bailiff info --since before                what has changed: who came, ended, grew; what came back
  bailiff info --watch                       until Ctrl-C
  bailiff info --json | jq '.gpus[].holders[]?'

Exit codes: 0 done, 1 failed, 64 invalid flags, 69 no GPU can be read.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_a_file_name_and_no_path() {
        for good in ["before", "run-7", "a.b_c", "7"] {
            assert_eq!(tag(good).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", ".a", "a/b", "a b", "ä", &"a".repeat(65)] {
            assert!(tag(bad).is_err(), "{bad:?}");
        }
    }
}
