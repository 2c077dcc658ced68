//! Looks for files among the open files of a process, without help.

use rustix::io::Errno;

use crate::clock::Deadline;
use crate::denied::{Attributes, Files};
use crate::directory::{Directory, ReadError};

/// Number of descriptors read between two checks of the clock.
const MANY: usize = 256;

/// Returns whether one of these files is open.
pub(crate) fn are_open(files: &Files, process: &Directory, until: Deadline) -> Result<bool, ReadError> {
    let directory = process.directory("fd")?;
    let mut result = Ok(false);
    let mut count = 0_usize;
    directory.each_name(|name| {
        count += 1;
        if count.is_multiple_of(MANY) && until.passed() {
            result = Err(ReadError::Unreadable(Errno::TIMEDOUT));
            return false;
        }
        match directory.link(name) {
            Err(error) if error.is_denied() => result = Err(error),
            Ok(link) if includes(files, &link) => result = Ok(true),
            // The descriptor was closed in the meantime, or its file has another path.
            _ if is_device(files, &directory, name) => result = Ok(true),
            Ok(_) | Err(_) => {}
        }
        matches!(result, Ok(false))
    })?;
    result
}

fn includes(files: &Files, path: &str) -> bool {
    files
        .prefix
        .as_ref()
        .is_some_and(|prefix| if files.longer { path.starts_with(prefix) } else { path == prefix })
}

/// Uses cached attributes, because a query may hang on a user's file system or an unreachable server.
fn is_device(files: &Files, directory: &Directory, name: &str) -> bool {
    let attributes = files.major.and_then(|_| Attributes::cached(directory, name).ok());
    attributes.is_some_and(|attributes| attributes.character.map(|(major, _)| major) == files.major)
}
