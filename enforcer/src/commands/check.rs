//! `check`: validates a rules file, and checks whether a running enforcer has it in force.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bailiff_exposition::terminal::Colors;
use bailiff_lifecycle::exit::{Exit, plain};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;

use super::files;
use crate::clock::now;
use crate::flags;
use crate::policy_file::{self, Content};
use bailiff_engine::policy::{FaultStyle, check};

/// Maximum size of a metrics page.
const LONGEST_PAGE: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks files.
///
/// # Errors
/// If the result cannot be written.
pub fn run(flags: &flags::Check, colors: Colors, out: &mut dyn Write) -> Result<Exit> {
    let style = if colors == Colors::Colour { FaultStyle::Coloured } else { FaultStyle::Plain };
    let mut exit = Exit::Done;
    let mut reports = Vec::new();
    for file in &flags.files {
        let name = file.display().to_string();
        let content = match read(file) {
            Ok(content) => content,
            Err(error) if flags.json => bail!("cannot read {name}: {}", plain(&error)),
            Err(error) => {
                writeln!(out, "error: cannot read {name}: {}", plain(&error))?;
                exit = Exit::Usage;
                continue;
            }
        };
        if !flags.json
            && file != Path::new("-")
            && let Some(error) = policy_file::permission_error(file, &content.bytes)
        {
            writeln!(out, "warning: the enforcer would refuse {name}: {}", plain(&error))?;
        }
        let report = check::report(&name, &content.bytes, crate::policy_file::context(now().wall), style);
        if !flags.json {
            write!(out, "{}", report.text)?;
        }
        if !report.sound {
            exit = Exit::Usage;
        } else if let Some(url) = &flags.against
            && exit == Exit::Done
            && !against((url, login(flags)), (&content.sha256, report.acts), out)?
        {
            exit = Exit::Failed;
        }
        reports.push(report);
    }
    if flags.json {
        super::replay::json(&reports, out)?;
    }
    Ok(exit)
}

/// Reads a file; `-` is standard input.
fn read(file: &Path) -> std::io::Result<Content> {
    if file == Path::new("-") { policy_file::from(std::io::stdin().lock()) } else { policy_file::read(file) }
}

/// Checks whether an enforcer has this policy in force; also reports an enforcing policy under `--dry-run`.
fn against((url, login): (&str, Login), (sha256, acts): (&str, bool), out: &mut dyn Write) -> Result<bool> {
    let (running, enforces) = match login.and_then(|login| running(url, login.as_deref())) {
        Ok(running) => running,
        Err(error) => {
            writeln!(out, "error: {error:#}")?;
            return Ok(false);
        }
    };
    if running != sha256 {
        writeln!(out, "{url} runs another policy: {running}; this file is {sha256}")?;
    } else if acts && !enforces {
        writeln!(out, "{url} runs the same rules ({sha256}) with --dry-run, so it takes no action")?;
    } else {
        writeln!(out, "{url} runs this policy ({sha256})")?;
    }
    Ok(running == sha256)
}

/// The `Authorization` header, if there is a user; or why the password cannot be read.
type Login = Result<Option<String>>;

fn login(flags: &flags::Check) -> Login {
    let (Some(user), Some(file)) = (&flags.user, &flags.password_file) else { return Ok(None) };
    let password = files::secret(file)?;
    Ok(Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))))
}

/// Returns the policy in force, and whether one of its rules enforces.
fn running(url: &str, login: Option<&str>) -> Result<(String, bool)> {
    let config =
        ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).tls_config(bailiff_prometheus::tls());
    let mut request =
        ureq::Agent::new_with_config(config.build()).get(&format!("{}/metrics", url.trim_end_matches('/')));
    if let Some(login) = login {
        request = request.header("Authorization", login);
    }
    let mut response = match request.call() {
        Err(ureq::Error::StatusCode(401)) => {
            bail!("{url} requires a user and a password: use --user and --password-file")
        }
        answer => answer.with_context(|| format!("{url} does not respond"))?,
    };
    let page = response
        .body_mut()
        .with_config()
        .limit(LONGEST_PAGE)
        .read_to_string()
        .with_context(|| format!("{url} does not respond"))?;
    let found = page.lines().find_map(|line| {
        let rest = line.strip_prefix(crate::metrics::POLICY_INFO.name)?.strip_prefix("{sha256=\"")?;
        rest.split('"').next()
    });
    let enforces = page
        .lines()
        .any(|line| line.starts_with(crate::metrics::RULE_INFO.name) && line.contains("mode=\"enforce\""));
    found
        .map(|sha256| (sha256.to_owned(), enforces))
        .with_context(|| format!("{url} is not an enforcer, or has not loaded a policy yet"))
}
