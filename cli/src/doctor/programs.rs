//! The programs and the quota library of this package: whether they are installed, and from the same release.

use std::path::Path;

use super::Doctor;
use super::check::Check;
use super::child;
use crate::run::quota::{LIBRARY, library};

/// Checks that the installed programs are from the same release.
pub(super) fn versions(flags: &Doctor) -> Check {
    const NAME: &str = "versions";
    let own_version = env!("CARGO_PKG_VERSION");
    let mut same = vec!["bailiff"];
    let mut others = Vec::new();
    for name in ["bailiff-exporter", "bailiff-enforcer"] {
        let Some(program) = child::find_program(name) else { continue };
        match child::output(&program, &["--version"], flags.deadline) {
            Ok(output) => {
                let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                if version == format!("{name} {own_version}") {
                    same.push(name);
                } else {
                    others.push(format!("{version} ({})", program.display()));
                }
            }
            Err(why) => others.push(format!("{}: {why}", program.display())),
        }
    }
    let same = same.join(", ");
    if others.is_empty() {
        return Check::ok(NAME, format!("{same} {own_version}"));
    }
    Check::warn(
        NAME,
        format!("{same} {own_version}, and {}", others.join(", ")),
        "install all programs from the same release",
    )
}

/// Checks that the quota library is found, as by `bailiff run`, and can be loaded.
pub(super) fn quota(flags: &Doctor) -> Check {
    const NAME: &str = "quota library";
    let library = match library(flags.quota_library.as_deref()) {
        Ok(library) => library,
        Err(error) if error.found || flags.quota_library.is_some() => {
            return Check::fail(
                NAME,
                error.why,
                "set --quota-library to an installed library, in a path without whitespace",
            );
        }
        Err(error) => return Check::skip(NAME, error.why, Some("it is needed only for bailiff run --vram")),
    };
    let shown = library.display();
    match loads(&library, flags) {
        Ok(()) => Check::ok(NAME, shown.to_string()),
        Err(why) => Check::fail(
            NAME,
            format!("{shown} cannot be loaded: {why}"),
            "check that the file is complete and built for this architecture, or reinstall the package",
        ),
    }
}

/// Checks that this program starts with the library preloaded. If the library cannot be preloaded, the loader
/// only prints an error.
fn loads(library: &Path, flags: &Doctor) -> Result<(), String> {
    let mut command = child::itself();
    command.arg("--version").env("LD_PRELOAD", library);
    let output = child::run(command, flags.deadline)?;
    let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match errors.lines().find(|line| line.contains(LIBRARY)) {
        Some(line) => Err(line.to_owned()),
        None if output.status.success() => Ok(()),
        None => Err("a program fails if the library is preloaded".to_owned()),
    }
}
