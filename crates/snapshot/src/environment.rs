//! Parses the environment of a process, `/proc/PID/environ`. The process can overwrite it, for example with its title.

use crate::lease::values;
use crate::text_limit::fits;

/// Environment variable with the notebook of a Jupyter kernel. Jupyter Server sets it for each kernel that it starts for a
/// session, since 2.0 to the path below its root, and since 2.0.7 to the absolute path (`get_kernel_env` in
/// `jupyter_server/services/sessions/sessionmanager.py`). The kernel's children inherit it, and users can set it.
pub const NOTEBOOK_VARIABLE: &str = "JPY_SESSION_NAME";

/// Returns the notebook of a Jupyter kernel; `None` if there is none, or if it is not UTF-8 or too long for a snapshot.
pub fn notebook(environ: &[u8]) -> Option<String> {
    // `getenv` returns the first occurrence.
    let first = *values(environ, NOTEBOOK_VARIABLE)?.first()?;
    let path = std::str::from_utf8(first).ok()?;
    (!path.is_empty() && fits(path)).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_limit::LONGEST_PATH;

    #[test]
    fn notebook_is_absent_unless_it_is_certain_and_short() {
        let of_length = |length: usize| [b"JPY_SESSION_NAME=", "x".repeat(length).as_bytes(), b"\0"].concat();
        let (longest, too_long) = (of_length(LONGEST_PATH), of_length(LONGEST_PATH + 1));
        let (path, whole) = ("/home/alice/a b.ipynb", "x".repeat(LONGEST_PATH));
        let cases: [(&[u8], Option<&str>); 11] = [
            (b"PATH=/bin\0JPY_SESSION_NAME=/home/alice/a b.ipynb\0", Some(path)),
            (b"JPY_SESSION_NAME=/home/alice/a b.ipynb\0JPY_SESSION_NAME=/other\0", Some(path)),
            (b"JPY_SESSION_NAME=\x1b[2J\"\n=\0", Some("\x1b[2J\"\n=")),
            (&longest, Some(&whole)),
            (&too_long, None),
            (b"JPY_SESSION_NAME=\xff.ipynb\0", None),
            (b"JPY_SESSION_NAME=\0", None),
            (b"XJPY_SESSION_NAME=/a\0JPY_SESSION_NAMES=/b\0", None),
            (b"JPY_SESSION_NAME=/a", None),
            (b"title\0JPY_SESSION_NAME=/a\0", None),
            (b"", None),
        ];
        for (environ, expected) in cases {
            assert_eq!(notebook(environ).as_deref(), expected, "{:?}", String::from_utf8_lossy(environ));
        }
    }
}
