#![expect(clippy::disallowed_methods, reason = "the one file of the enforcer that runs programs")]
//! Step `exec`, and the programs of channels: runs a program of the administrator, which receives the finding on
//! standard input. There is no shell, PATH is the only variable, and there is a deadline.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use bailiff_lifecycle::exit::plain;
use bailiff_lifecycle::file::{self, PATIENCE};
use bailiff_lifecycle::permissions::FilePermissions;
use bailiff_subprocess::{Late, Talk};
use serde_json::json;

use super::ActionResult;
use super::context::{ActionContext, done};
use crate::programs;
use bailiff_engine::Kind;
use bailiff_engine::guard::Refusal;
use bailiff_engine::verdict::Outcome;

/// Runs a program that has these permissions, with `input` on its standard input; its output is ignored.
pub(super) fn run_program(
    argv: &[String],
    input: &[u8],
    (deadline, permissions): (Duration, FilePermissions),
) -> Result<(), String> {
    let talk = Talk { input, heard: false, deadline, late: Late::Group };
    run_with(argv, &talk, permissions).map(drop)
}

/// Runs a program that has these permissions, and returns its output.
pub(super) fn program_output(
    argv: &[String],
    (deadline, permissions): (Duration, FilePermissions),
) -> Result<String, String> {
    let output = run_with(argv, &Talk::within(deadline), permissions)?;
    // Users can write bytes that are not UTF-8 into their line of `/etc/passwd`.
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn run_with(argv: &[String], talk: &Talk<'_>, permissions: FilePermissions) -> Result<Output, String> {
    let (name, arguments) = argv.split_first().ok_or("no program is named")?;
    let program = name.clone();
    // The permissions may have changed since the rules were loaded.
    file::within(Path::new(name), PATIENCE, move |_| programs::check(&program, permissions))
        .map_err(|error| plain(&error))?;
    let mut command = Command::new(name);
    command.args(arguments).env_clear().env("PATH", programs::search_path()).current_dir("/");
    let output = bailiff_subprocess::run(command, talk).map_err(|error| error.to_string())?;
    if output.status.success() { Ok(output) } else { Err(output.status.to_string()) }
}

/// Runs the program after the guard has checked the target. No data of processes is passed as an argument.
pub(super) fn run(context: &ActionContext<'_>, argv: &[String]) -> Result<ActionResult, Refusal> {
    let request = context.request;
    let group = match request.subject.kind {
        Kind::Process | Kind::Workload | Kind::SlurmJob | Kind::Pod => Some(context.gather()?),
        Kind::Gpu | Kind::Lease | Kind::MpsServer => None,
    };
    let payload = json!({
        "id": request.id,
        "node": context.settings.node,
        "rule": &*request.rule,
        "step": request.action.name(),
        "policy": &*request.policy,
        "target": &*request.subject,
        "evidence": &request.evidence,
    });
    let input = crate::audit::ascii(&payload).map_err(|error| Refusal::refused(error.to_string()))?;
    let limits = (context.settings.program, context.settings.permissions);
    Ok(context.carry_out(|_| {
        let (outcome, detail) = match run_program(argv, &input, limits) {
            Ok(()) => (Outcome::Done, String::new()),
            Err(why) => (Outcome::Failed, why),
        };
        match group {
            Some(group) => done(outcome, detail, group),
            None => ActionResult::new(outcome, detail),
        }
    }))
}
