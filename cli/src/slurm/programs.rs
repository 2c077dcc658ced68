//! Runs Slurm's own programs: `slurmd -G` and `scontrol`.

#![expect(clippy::disallowed_methods, reason = "starts Slurm's programs")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bailiff_lifecycle::permissions::FilePermissions;
use bailiff_proc::Proc;
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
pub(super) fn output(program: &str, arguments: &[&str], deadline: Duration) -> Result<String, String> {
    let path = find(program)?;
    let mut command = Command::new(&path);
    command.args(arguments).env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
    // With `%s`, times are seconds since the epoch.
    command.env("SLURM_TIME_FORMAT", "%s");
    if let Some(conf) = std::env::var_os("SLURM_CONF") {
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

/// Returns the directories of the Slurm installation whose slurmd started this hook.
fn beside_parent() -> Vec<PathBuf> {
    let exe = Proc::own().and_then(|proc| proc.process(std::os::unix::process::parent_id())?.exe());
    let Ok(exe) = exe else { return Vec::new() };
    match Path::new(&exe).parent().and_then(Path::parent) {
        Some(root) if is_slurms(&exe, "slurmd") => vec![root.join("sbin"), root.join("bin")],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
