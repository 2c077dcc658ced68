//! Reads the files named in flags.

#![expect(clippy::disallowed_methods, reason = "the one file of the commands that opens files")]

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use super::Failure;
use bailiff_engine::policy::{FaultStyle, Loaded, load};

/// Loads a rules file; `now` is since the Unix epoch.
pub(super) fn rules(path: &Path, now: Duration) -> Result<Loaded, Failure> {
    let bytes = fs::read(path).map_err(|error| Failure::file(path, error))?;
    load(&bytes, &path.display().to_string(), crate::policy_file::context(now))
        .map_err(|faults| Failure::Faults(faults.render(FaultStyle::Plain)))
}

/// Opens a file for reading by line.
pub(super) fn lines(path: &Path) -> Result<BufReader<File>, Failure> {
    File::open(path).map(BufReader::new).map_err(|error| Failure::file(path, error))
}

/// Reads a text file.
pub(super) fn text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::file(path, error))
}

/// Returns the first line of a file with a secret.
pub(super) fn secret(path: &Path) -> Result<String, Failure> {
    bailiff_prometheus::secret(path).map_err(|error| Failure::file(path, error))
}
