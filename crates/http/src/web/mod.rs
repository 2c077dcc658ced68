//! The web config, in the format of Prometheus' exporter toolkit: TLS, users, headers and a rate limit. It is
//! read for each connection and request, so that changes take effect at once. While it is invalid, requests
//! are refused.

mod choice;
mod clients;
mod config;
mod fault;
mod files;
mod headers;
mod names;
mod pem;
mod rate;
mod tls;
mod turns;
mod users;
mod written;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bailiff_lifecycle::exit::{FileError, plain};
use bailiff_lifecycle::file;
use bailiff_lifecycle::permissions::FilePermissions;
use tokio::sync::Mutex;
use tokio::time::timeout;

pub(crate) use self::config::Config;
use self::fault::of_file;
use self::files::Files;

/// Deadline for reading the files.
const PATIENCE: Duration = Duration::from_secs(5);

/// The web config with its current content.
#[derive(Clone)]
pub struct Web(Kind);

#[derive(Clone)]
enum Kind {
    /// There is no file: plain HTTP without authentication.
    Open(Arc<Config>),
    /// The config is in a file. The flag is set if the last read took too long, because the reader then still
    /// holds the lock.
    Kept(Arc<Mutex<Kept>>, Arc<AtomicBool>),
}

/// A file with the content that was read last.
struct Kept {
    path: PathBuf,
    permissions: FilePermissions,
    files: Files,
    now: Result<Arc<Config>, FileError>,
    /// The last valid config.
    good: Arc<Config>,
}

/// Does not print the content, which is secret.
impl fmt::Debug for Web {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Web")
    }
}

impl Web {
    /// Loads the config from a file, which must have these permissions, as must the files that it names. Without a
    /// file, returns plain HTTP.
    ///
    /// # Errors
    /// If the config is invalid, or if its file system is not responding.
    pub fn open(path: Option<&Path>, permissions: FilePermissions) -> Result<Self, FileError> {
        let Some(path) = path else { return Ok(Self(Kind::Open(Arc::default()))) };
        let (files, read) = file::within(path, PATIENCE, move |path| Ok(read(path, permissions)))
            .map_err(|error| of_file(path, &plain(&error)))?;
        let config = Arc::new(read?);
        let kept =
            Kept { path: path.to_owned(), permissions, files, now: Ok(Arc::clone(&config)), good: config };
        Ok(Self(Kind::Kept(Arc::new(Mutex::new(kept)), Arc::default())))
    }

    /// Returns whether a response can be sent without a TLS handshake. That is certain only if there is no
    /// file.
    pub(crate) const fn answers_without_handshake(&self) -> bool {
        matches!(self.0, Kind::Open(_))
    }

    /// Returns the current config.
    pub(crate) async fn now(&self) -> Result<Arc<Config>, FileError> {
        let (kept, late) = match &self.0 {
            Kind::Open(config) => return Ok(Arc::clone(config)),
            Kind::Kept(kept, late) => (Arc::clone(kept), late),
        };
        let read = async {
            let mut kept = kept.lock_owned().await;
            // A hung disk then blocks only requests.
            tokio::task::spawn_blocking(move || kept.read()).await
        };
        if let Ok(Ok(now)) = timeout(PATIENCE, read).await {
            if late.swap(false, Ordering::Relaxed) {
                tracing::info!("the web config can be read again");
            }
            return now;
        }
        if !late.swap(true, Ordering::Relaxed) {
            tracing::error!(after = ?PATIENCE, "cannot read the web config in time; requests are refused until it can be read");
        }
        Err(of_file(Path::new("the web config"), "the file cannot be read in time"))
    }
}

impl Kept {
    fn read(&mut self) -> Result<Arc<Config>, FileError> {
        if !self.files.still() {
            let (files, read) = read(&self.path, self.permissions);
            let now = read.and_then(|config| self.no_less(config));
            self.log(&now);
            self.files = files;
            self.now = now;
        }
        self.now.clone()
    }

    /// Rejects a changed config that relaxes the requirements on clients, because some editors empty a file
    /// before they write it.
    fn no_less(&self, mut config: Config) -> Result<Arc<Config>, FileError> {
        match config.relaxes(&self.good) {
            None => {
                config.remember(&self.good);
                Ok(Arc::new(config))
            }
            Some(what) => {
                let why = format!("{what}; to reduce the protection, restart the program");
                Err(of_file(&self.path, &why))
            }
        }
    }

    fn log(&mut self, now: &Result<Arc<Config>, FileError>) {
        match now {
            Ok(config) => {
                tracing::info!(path = %self.path.display(), "the web config has changed and is now in force");
                self.good = Arc::clone(config);
            }
            Err(fault) if self.now.as_ref().err() != Some(fault) => {
                tracing::error!(%fault, "the web config is invalid; requests are refused until it is corrected");
            }
            Err(_) => {}
        }
    }
}

fn read(path: &Path, permissions: FilePermissions) -> (Files, Result<Config, FileError>) {
    let mut files = Files::beside(path, permissions);
    // The path of the file itself is not relative to the file's directory.
    let name = path.file_name().map_or(path, Path::new);
    let text = files.read(name);
    let config = match text {
        Ok(text) => Config::understood(&text, &mut files).map_err(|wrong| wrong.in_file(path)),
        Err(why) => Err(of_file(path, &why)),
    };
    (files, config)
}
