//! The flags of `bailiff info`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};

use super::figures::Units;
use crate::args::{Exporter, Machine, Pool};
use crate::owner::SOCKET;

/// The maximum length of a tag.
const MAX_TAG_LENGTH: usize = 64;

/// The flags of `info`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(crate) struct Info {
    /// Save the report under this name for --since.
    #[arg(long, value_name = "TAG", value_parser = tag)]
    pub(crate) tag: Option<String>,
    /// Compare with the report saved under this name.
    #[arg(long, value_name = "TAG", value_parser = tag, conflicts_with = "watch")]
    pub(crate) since: Option<String>,
    /// Show only these GPUs, by index or UUID, such as 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) gpu: Vec<String>,
    /// Print the long report.
    ///
    /// The long report adds the breakdown of each GPU's memory and the memory of each user.
    #[arg(long)]
    pub(crate) full: bool,
    /// Print the long report and the processes that have a GPU device file open.
    ///
    /// It includes processes that the driver does not list.
    #[arg(long)]
    pub(crate) who: bool,
    /// Print the energy of each GPU: of each user, while idle, and not attributed.
    ///
    /// The sum of the parts is the observed increase of the driver's counter.
    #[arg(long, conflicts_with_all = ["since", "who"])]
    pub(crate) energy: bool,
    /// Maximum number of processes per GPU; the processes with the most memory are shown.
    ///
    /// The other processes are shown as a sum. Default: 10, or fewer if that makes the report fit the terminal.
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Print only your own memory, with --brief. This is the default.
    #[arg(long, requires = "brief")]
    pub(crate) mine: bool,
    /// Print the memory of this user, by name or uid, with --brief.
    #[arg(long, value_name = "USER", requires = "brief", conflicts_with = "mine")]
    pub(crate) user: Option<String>,
    /// Print one line with the GPU memory that you hold, or nothing, for login scripts.
    ///
    /// The data comes only from the exporter and the enforcer, and no failure is reported.
    #[arg(long, conflicts_with_all = ["tag", "since", "gpu", "full", "who", "energy", "top", "json", "watch", "alone"])]
    pub(crate) brief: bool,
    /// The enforcer's socket for users, with --brief.
    #[arg(long, value_name = "PATH", requires = "brief", default_value = SOCKET)]
    pub(crate) enforcer: PathBuf,
    /// Print one JSON object per report.
    #[arg(long)]
    pub(crate) json: bool,
    /// Repeat the report until Ctrl-C; on a terminal, redraw in place.
    #[arg(long)]
    pub(crate) watch: bool,
    /// The units of sizes.
    #[arg(skip)]
    pub(crate) units: Units,
    #[command(flatten)]
    pub(crate) source: SourceFlags,
}

/// The source of the data.
#[derive(Debug, Args)]
pub(crate) struct SourceFlags {
    #[command(flatten)]
    pub(crate) exporter: Exporter,
    /// Sample the driver directly, even if the exporter is running.
    #[arg(long)]
    pub(crate) alone: bool,
    /// Interval between two samples when the driver is sampled directly.
    #[arg(long, value_name = "TIME", value_parser = crate::args::span, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Timeout for opening the driver.
    ///
    /// Without persistence mode, opening takes seconds.
    #[arg(long, value_name = "TIME", value_parser = crate::args::span, default_value = "30s")]
    pub(crate) deadline: Duration,
    #[command(flatten)]
    pub(crate) machine: Machine,
    #[command(flatten)]
    pub(crate) pool: Pool,
}

/// Show each GPU with its memory, utilization and processes
///
/// The data comes from bailiff-exporter if it is running; otherwise the driver and /proc are sampled twice, one
/// second apart.
#[derive(Debug, Parser)]
#[command(name = "cuda_info.sh", version)]
pub(crate) struct ScriptArgs {
    #[command(flatten)]
    pub(crate) info: Info,
    /// Accepted and ignored, as in `cuda_info.sh`.
    #[arg(short = 'v', long = "verbose", hide = true)]
    _verbose: bool,
}

/// Parses a tag, which is also a file name.
fn tag(text: &str) -> Result<String, String> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    if text.is_empty()
        || text.len() > MAX_TAG_LENGTH
        || text.starts_with('.')
        || !text.chars().all(is_allowed)
    {
        return Err(
            "a tag must not start with a dot, and must consist of 1 to 64 letters, digits, dots, dashes \
                    and underscores"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

const EXAMPLES: &str = "Examples:
  bailiff info                               show GPUs and their processes
  bailiff info --full                        print the long report, with the memory of each user
  bailiff info --gpu 3 --who                 include processes that the driver does not list
  bailiff info --energy                      print the energy of each user
  bailiff info --tag before                  save the report under that name
  bailiff info --since before                show the changes since that report
  bailiff info --watch                       repeat until Ctrl-C
  bailiff info --mine --brief                print your GPU memory in one line, or nothing
  bailiff info --json | jq '.gpus[].holders[]?'

Exit codes: 0: success; 1: failure; 64: invalid flags; 69: no GPU can be read.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_must_be_a_plain_file_name() {
        for good in ["before", "run-7", "a.b_c", "7"] {
            assert_eq!(tag(good).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", ".a", "a/b", "a b", "ä", &"a".repeat(65)] {
            assert!(tag(bad).is_err(), "{bad:?}");
        }
    }
}
