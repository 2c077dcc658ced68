//! `bailiff-enforcer schema`: the JSON Schema of the rules, for editors.

use std::io::Write;

use anyhow::{Context, Result};
use serde_json::Value;

/// Prints a schema.
///
/// # Errors
/// If nothing can be printed.
pub fn run(schema: &Value, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{schema:#}").context("cannot print")
}
