//! Runs Slurm's own programs: `slurmd -G` and `scontrol`.

#![expect(clippy::disallowed_methods, reason = "starts Slurm's programs")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bailiff_lifecycle::permissions::FilePermissions;
use bailiff_proc::{Proc, Process};
use bailiff_subprocess::{Talk, run};

/// Directories in which Slurm is usually installed.
const DIRECTORIES: [&str; 6] =
    ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/slurm/sbin", "/opt/slurm/bin"];
/// The only `PATH` that the programs get.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a program, and returns what it printed on standard output and standard error.
///
/// # Errors
/// If the program is not found, can be changed by a user other than root, fails, or does not exit before the deadline.
pub(crate) fn output(program: &str, arguments: &[&str], deadline: Duration) -> Result<String, String> {
    let path = find(program)?;
    let mut command = Command::new(&path);
    command.args(arguments).env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
    // With `%s`, times are seconds since the epoch.
    command.env("SLURM_TIME_FORMAT", "%s");
    if let Some(conf) = conf() {
        command.env("SLURM_CONF", conf);
    }
    let failed = |why: &dyn std::fmt::Display| format!("{} {}: {why}", path.display(), arguments.join(" "));
    let output = run(command, &Talk::within(deadline)).map_err(|error| failed(&error))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        let first = text.lines().next().unwrap_or("no message");
        Err(failed(&format_args!("{}: {first}", output.status)))
    }
}

/// Returns whether this is the path of a program of Slurm, or was before an upgrade replaced the file. Debian's programs
/// have names such as `slurmstepd-wlm`.
pub(super) fn is_slurms(exe: &str, program: &str) -> bool {
    let path = exe.strip_suffix(" (deleted)").unwrap_or(exe);
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix("-wlm").unwrap_or(name) == program
}

/// Returns the path of a program that only root can change.
fn find(program: &str) -> Result<PathBuf, String> {
    let beside = beside_parent().into_iter();
    let found = beside.chain(DIRECTORIES.map(PathBuf::from)).map(|directory| directory.join(program));
    let Some(path) = found.into_iter().find(|path| path.is_file()) else {
        return Err(format!("{program} is not installed"));
    };
    FilePermissions::Strict.check(&path).map_err(|error| error.to_string())?;
    Ok(path)
}

/// Returns the path of slurm.conf, if it is not the usual one. slurmd does not tell it to a `HealthCheckProgram`.
pub(super) fn conf() -> Option<String> {
    std::env::var("SLURM_CONF").ok().or_else(|| {
        let (slurmd, _) = slurmd()?;
        let named = slurmd.cmdline().ok().and_then(|line| option_f(&String::from_utf8_lossy(&line)));
        named.or_else(|| slurmd.variable("SLURM_CONF")).filter(|path| path.starts_with('/'))
    })
}

/// Returns the value of `-f` in a command line.
fn option_f(line: &str) -> Option<String> {
    let mut words = line.split('\0').skip(1);
    let path = words.find_map(|word| word.strip_prefix("-f"))?;
    if path.is_empty() { words.next().map(str::to_owned) } else { Some(path.to_owned()) }
}

/// Returns the slurmd that started this command, and the path of its program.
fn slurmd() -> Option<(Process, String)> {
    let process = Proc::own().and_then(|proc| proc.process(std::os::unix::process::parent_id())).ok()?;
    let exe = process.exe().ok().filter(|exe| is_slurms(exe, "slurmd"))?;
    Some((process, exe))
}

/// Returns the directories of the Slurm installation whose slurmd started this hook.
fn beside_parent() -> Vec<PathBuf> {
    let exe = slurmd().map(|(_, exe)| PathBuf::from(exe));
    let root = exe.as_deref().and_then(Path::parent).and_then(Path::parent);
    root.map(|root| vec![root.join("sbin"), root.join("bin")]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurmd_is_told_its_settings_with_f() {
        for (line, expected) in [
            ("slurmd\0-D\0-f\0/srv/slurm.conf\0", Some("/srv/slurm.conf")),
            ("slurmd\0-f/srv/slurm.conf\0-D\0", Some("/srv/slurm.conf")),
            ("slurmd\0-D\0", None),
            ("slurmd\0-f", None),
        ] {
            assert_eq!(option_f(line).as_deref(), expected, "{line:?}");
        }
    }

    #[test]
    fn programs_of_slurm_have_these_paths() {
        for (exe, expected) in [
            ("/usr/sbin/slurmstepd", true),
            ("/usr/sbin/slurmstepd-wlm", true),
            ("/opt/slurm/sbin/slurmstepd (deleted)", true),
            ("/usr/sbin/slurmstepd-wlm (deleted)", true),
            ("/usr/sbin/slurmd-wlm", false),
            ("/tmp/slurmstepd-x", false),
            ("/tmp/slurmstepd/su", false),
        ] {
            assert_eq!(is_slurms(exe, "slurmstepd"), expected, "{exe}");
        }
    }
}
