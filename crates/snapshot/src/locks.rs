//! Parses `/proc/locks` (proc(5)). Does not open the file.

/// Returns the kinds of the `flock` locks on a file, `READ` or `WRITE`, with the pids that took them. The file is named as
/// in `/proc/locks`: `MAJOR:MINOR:INODE`. Requests that are blocked are not locks.
pub fn takers<'a>(locks: &'a str, file: &'a str) -> impl Iterator<Item = (&'a str, u32)> {
    // `1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF`; a blocked request has `->` after its number.
    locks.lines().filter_map(move |line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, "FLOCK", _, kind, pid, of, ..] if of == file => Some((kind, pid.parse().ok()?)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taker_is_parsed_from_proc_locks() {
        for (line, taken) in [
            ("1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF", Some(("WRITE", 4711))),
            ("1: POSIX  ADVISORY  WRITE 4711 00:19:1234 0 EOF", None),
            ("1: FLOCK  ADVISORY  READ  4711 00:19:1234 0 EOF", Some(("READ", 4711))),
            ("1: FLOCK  ADVISORY  WRITE 4711 00:19:12345 0 EOF", None),
            ("1: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF", None),
            ("1: -> FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF", None),
            ("", None),
        ] {
            assert_eq!(takers(line, "00:19:1234").next(), taken, "{line}");
        }
    }
}
