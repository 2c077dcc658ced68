//! The helper's side of [`crate::denied`].

use std::os::fd::OwnedFd;
use std::thread::Builder;

use rustix::fs::{Mode, PROC_SUPER_MAGIC, fstatfs, openat, readlinkat};
use rustix::io::Errno;

use crate::channel::{Request, Service, serve};
use crate::denied::{Answer, Attributes, Read};
use crate::directory::{Directory, FILE, ReadError};
use crate::files;
use crate::patient::PATIENCE;

/// Maximum length of a link's target (`PATH_MAX`).
const LONGEST_LINK: usize = 4096;

/// Reads for another program, in the helper. Other files than those that the program needs are refused.
#[derive(Debug)]
pub struct Reader;

impl Service for Reader {
    type Request = Read;
    type Answer = Answer;

    fn answer(&mut self, request: Request<Read>) -> (Answer, Option<OwnedFd>) {
        let read = request.content;
        let patience = match &read {
            Read::HasOpen(_, until) => until.left(),
            Read::Open(_) | Read::Link(_) | Read::Attributes(_) => PATIENCE,
            Read::Serve => return (serve_too(request.file), None),
        };
        let answer = request.file.ok_or(Errno::BADF.into()).and_then(|process| {
            Directory::from(process).within(patience, move |process| Ok(read_in(process, &read)?))
        });
        answer.unwrap_or_else(|error| (Answer::Error(error.errno().raw_os_error()), None))
    }
}

/// Serves another socket, until the program closes its end.
fn serve_too(socket: Option<OwnedFd>) -> Answer {
    let Some(socket) = socket else { return Answer::Error(Errno::BADF.raw_os_error()) };
    let thread = Builder::new().name("searches".to_owned());
    match thread.spawn(move || serve(socket, &mut Reader)) {
        Ok(_) => Answer::Serving,
        Err(_) => Answer::Error(Errno::AGAIN.raw_os_error()),
    }
}

fn read_in(directory: &Directory, read: &Read) -> Result<(Answer, Option<OwnedFd>), Errno> {
    if fstatfs(directory)?.f_type != PROC_SUPER_MAGIC {
        return Err(Errno::BADF);
    }
    match read {
        Read::Open(name)
            if matches!(of_thread(name), "environ" | "fdinfo") || is_number_in(name, "fdinfo/") =>
        {
            Ok((Answer::File, Some(openat(directory, name, FILE, Mode::empty())?)))
        }
        Read::Link(name) if matches!(name.as_str(), "exe" | "ns/pid") => {
            let target = readlinkat(directory, name, Vec::new())?;
            // With pages of 64 KiB, older kernels return longer paths, which do not fit into an answer.
            if target.count_bytes() > LONGEST_LINK {
                return Err(Errno::NAMETOOLONG);
            }
            Ok((Answer::Link(target.to_string_lossy().into_owned()), None))
        }
        Read::Attributes(name)
            if name == "exe"
                || is_number_in(name, "fd/")
                || name.starts_with("root/")
                || name.starts_with("self/root/") =>
        {
            Ok((Answer::Attributes(Attributes::cached(directory, name)?), None))
        }
        Read::HasOpen(files, until) => {
            let open = files::are_open(files, directory, *until).map_err(ReadError::errno)?;
            Ok((Answer::HasOpen(open), None))
        }
        _ => Err(Errno::PERM),
    }
}

/// Removes `task/TID/` from the name of a file.
fn of_thread(name: &str) -> &str {
    let of_task = name.strip_prefix("task/").and_then(|rest| rest.split_once('/'));
    of_task.filter(|(thread, _)| thread.parse::<u32>().is_ok()).map_or(name, |(_, file)| file)
}

fn is_number_in(name: &str, directory: &str) -> bool {
    name.strip_prefix(directory).is_some_and(|number| number.parse::<u32>().is_ok())
}
