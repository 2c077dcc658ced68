//! The usage and help of GPU.py in argparse's layout.

use super::flags::{FLAGS, Flag, Takes};

/// The examples and exit codes after argparse's help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  bailiff gpuget --redis-manage-all   create a pool of all GPUs of this machine
  gpu=$(bailiff gpuget --get)         wait for a GPU
  bailiff gpuget --active             list the GPUs in use and their processes
  bailiff gpuget --release $gpu       release the GPU

Exit codes: 0: success; 1: failure; 2: invalid flags; 255: no Redis server,
or a --redis-manage-count that is not below the number of GPUs.";

/// The width that argparse uses on a terminal of 80 columns.
const WIDTH: usize = 78;
/// The column at which help texts begin.
const COLUMN: usize = 24;

/// Returns the usage.
pub(super) fn usage(program: &str) -> String {
    let prefix = format!("usage: {program} ");
    let mut lines = vec![String::new()];
    for part in parts() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(&part),
            Some(line) if prefix.len() + line.len() + 1 + part.len() <= WIDTH => {
                line.push(' ');
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    format!("{prefix}{}\n", lines.join(&format!("\n{}", " ".repeat(prefix.len()))))
}

/// Returns the help.
pub(super) fn help(program: &str) -> String {
    let options: Vec<String> = FLAGS.iter().map(option).collect();
    format!(
        "{}\nGPUs handed out through Redis, one holder each. Stands in for GPUGET's GPU.py.\n\noptions:\n{}",
        usage(program),
        options.concat()
    )
}

fn option(flag: &Flag) -> String {
    let name =
        if flag.name == "--help" { "  -h, --help".to_owned() } else { format!("  {}", with_value(flag)) };
    if name.len() + 2 <= COLUMN {
        format!("{name:COLUMN$}{}\n", flag.help)
    } else {
        format!("{name}\n{:COLUMN$}{}\n", "", flag.help)
    }
}

fn with_value(flag: &Flag) -> String {
    match flag.takes {
        Takes::Nothing => flag.name.to_owned(),
        Takes::Text | Takes::Int => format!("{} {}", flag.name, flag.value()),
    }
}

/// Returns the parts of the usage that are not wrapped.
fn parts() -> Vec<String> {
    let exclusive: Vec<String> = FLAGS.iter().filter(|flag| flag.exclusive).map(with_value).collect();
    let mut parts = vec!["[-h]".to_owned()];
    for flag in FLAGS.iter().skip(1) {
        match flag.exclusive {
            false => parts.push(format!("[{}]", with_value(flag))),
            true if exclusive.first() == Some(&with_value(flag)) => {
                parts.push(format!("[{}]", exclusive.join(" | ")));
            }
            true => {}
        }
    }
    parts
}
