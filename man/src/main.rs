//! Writes the man pages of all programs into a folder: `man-pages FOLDER`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("man-pages: it needs a folder");
        return ExitCode::from(64);
    };
    match std::fs::create_dir_all(&folder).and_then(|()| man_pages::write(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("man-pages: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
