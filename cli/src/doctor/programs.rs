//! Our own programs and library: whether they are there, and of one release.

use std::path::Path;

use super::check::Check;
use super::child;
use super::flags::Doctor;
use crate::run::quota::{LIBRARY, library};

/// Whether those that are installed are of one release.
pub(super) fn versions(flags: &Doctor) -> Check {
    const NAME: &str = "versions";
    let ours = env!("CARGO_PKG_VERSION");
    let mut same = vec!["bailiff"];
    let mut others = Vec::new();
    for name in ["bailiff-exporter", "bailiff-enforcer"] {
        let Some(program) = child::ours(name) else { continue };
        match child::said(&program, &["--version"], flags.deadline) {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                if said == format!("{name} {ours}") {
                    same.push(name);
                } else {
                    others.push(format!("{said} ({})", program.display()));
                }
            }
            Err(why) => others.push(format!("{}: {why}", program.display())),
        }
    }
    let same = same.join(", ");
    if others.is_empty() {
        return Check::ok(NAME, format!("{same} {ours}"));
    }
    Check::warn(NAME, format!("{same} {ours}, and {}", others.join(", ")), "install programs of one release")
}

/// Whether the library that limits memory is found, where `bailiff run` looks for it, and can be loaded.
pub(super) fn quota(flags: &Doctor) -> Check {
    const NAME: &str = "quota library";
    let library = match library(flags.quota_library.as_deref()) {
        Ok(library) => library,
        Err(no) if no.found || flags.quota_library.is_some() => {
            return Check::fail(NAME, no.why, "name one that is installed, in a directory without blanks");
        }
        Err(no) => return Check::skip(NAME, no.why, Some("bailiff run --vram needs it")),
    };
    let shown = library.display();
    match loads(&library, flags) {
        Ok(()) => Check::ok(NAME, shown.to_string()),
        Err(why) => Check::fail(
            NAME,
            format!("{shown} cannot be loaded: {why}"),
            "is it of this machine's kind, and whole?",
        ),
    }
}

/// The loader only complains of what it cannot preload, and goes on.
fn loads(library: &Path, flags: &Doctor) -> Result<(), String> {
    let mut command = child::itself();
    command.arg("--version").env("LD_PRELOAD", library);
    let output = child::run(command, flags.deadline)?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match said.lines().find(|line| line.contains(LIBRARY)) {
        Some(line) => Err(line.to_owned()),
        None if output.status.success() => Ok(()),
        None => Err("a program that has it loaded fails".to_owned()),
    }
}
