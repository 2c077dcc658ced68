//! Writes the man pages of all programs into a directory: `man-pages DIRECTORY`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: man-pages DIRECTORY");
        return ExitCode::from(64);
    };
    match std::fs::create_dir_all(&directory).and_then(|()| man_pages::write(&directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("man-pages: {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
