//! What GPU.py says of itself, laid out as argparse lays it out.

use super::flags::{FLAGS, Flag, Takes};

/// What argparse has no word for, and stands behind its help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  bailiff gpuget --redis-manage-all   hands out all GPUs of this machine
  gpu=$(bailiff gpuget --get)         waits for one
  bailiff gpuget --active             who has which
  bailiff gpuget --release $gpu       gives it back

Exit codes: 0 done, 1 failed, 2 invalid flags, 255 no Redis, or
--redis-manage-count is not below the number of GPUs.";

/// Columns that argparse uses of a terminal of 80.
const WIDTH: usize = 78;
/// Where help begins.
const COLUMN: usize = 24;

/// The usage, with its line ends.
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

/// The help, with its line ends.
pub(super) fn help(program: &str) -> String {
    let options: Vec<String> = FLAGS.iter().map(option).collect();
    format!(
        "{}\nGPUs handed out through Redis, one holder each. Stands in for GPUGET's GPU.py.\n\noptions:\n{}",
        usage(program),
        options.concat()
    )
}

fn option(flag: &Flag) -> String {
    let name = if flag.name == "--help" { "  -h, --help".to_owned() } else { format!("  {}", written(flag)) };
    if name.len() + 2 <= COLUMN {
        format!("{name:COLUMN$}{}\n", flag.help)
    } else {
        format!("{name}\n{:COLUMN$}{}\n", "", flag.help)
    }
}

fn written(flag: &Flag) -> String {
    match flag.takes {
        Takes::Nothing => flag.name.to_owned(),
        Takes::Text | Takes::Int => format!("{} {}", flag.name, flag.value()),
    }
}

/// What is not broken over two lines.
fn parts() -> Vec<String> {
    let alone: Vec<String> = FLAGS.iter().filter(|flag| flag.alone).map(written).collect();
    let mut parts = vec!["[-h]".to_owned()];
    for flag in FLAGS.iter().skip(1) {
        match flag.alone {
            false => parts.push(format!("[{}]", written(flag))),
            true if alone.first() == Some(&written(flag)) => parts.push(format!("[{}]", alone.join(" | "))),
            true => {}
        }
    }
    parts
}
