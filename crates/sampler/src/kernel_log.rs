#![expect(clippy::disallowed_methods, reason = "opens the kernel log")]
//! Reads the records that were added to the kernel log since the previous sample, and never waits for more.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use bailiff_proc::clock::since_boot;
use bailiff_snapshot::{Gap, Gaps, KernelLog, LoggedXid};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Maximum number of reads for a sample. `/dev/kmsg` returns one record for each; the rest is read in the next sample.
const MOST_READS: usize = 4096;
/// Maximum number of errors in a sample.
const MOST_XIDS: usize = 1024;
/// More than the longest record (`PRINTK_MESSAGE_MAX`, and `CONSOLE_EXT_LOG_MAX` of older kernels).
const LONGEST_RECORD: usize = 16 << 10;

/// The kernel prints the name of a cgroup, which users choose, after this text and as a fragment of its own. If another
/// task prints meanwhile, the name begins a record (`cpuset_print_current_mems_allowed` in `cpuset.c`).
const BEFORE_NAME: &str = ",cpuset=";
/// Microseconds for which no fragment counts after that.
const NAME_PERIOD: u64 = 10_000_000;
/// In place of the time of a lost record: it is not after that of the next record.
const AT_NEXT: u64 = u64::MAX;

/// An open kernel log: `/dev/kmsg`, or a file with records in its format.
pub(crate) struct KernelLogReader {
    path: PathBuf,
    file: Option<File>,
    /// Time since boot at which all earlier records had been read.
    from: Duration,
    /// Beginning of a record, if a read ended within it; only of other files than `/dev/kmsg`.
    partial: Vec<u8>,
    /// Time of the last record that ended with [`BEFORE_NAME`], in microseconds of the log.
    name_due: Option<u64>,
}

impl KernelLogReader {
    /// Opens the log at its end. If that fails, the first read reports why.
    pub(crate) fn open(path: PathBuf) -> Self {
        let mut reader = Self { path, file: None, from: Duration::ZERO, partial: Vec::new(), name_due: None };
        // The error is that of the first read, which tries again.
        let _ = reader.reopen();
        reader
    }

    fn reopen(&mut self) -> io::Result<()> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        self.from = since_boot();
        // A FIFO has no position.
        file.seek(SeekFrom::End(0)).or_else(|error| match error.kind() {
            ErrorKind::NotSeekable => Ok(0),
            _ => Err(error),
        })?;
        self.partial.clear();
        self.file = Some(file);
        Ok(())
    }

    /// Reads the records since the previous call. Lost records are counted as gaps.
    ///
    /// # Errors
    /// If the log cannot be opened or read: the message for the log. The next call tries again.
    pub(crate) fn read(&mut self, gaps: &mut Gaps) -> Result<KernelLog, String> {
        self.records(gaps).map_err(|error| {
            format!(
                "cannot read the kernel log {}: {error}; no Xid errors are attributed to processes (/dev/kmsg needs \
                 CAP_SYSLOG and ProtectKernelLogs=no, see docs/metrics.md)",
                self.path.display()
            )
        })
    }

    fn records(&mut self, gaps: &mut Gaps) -> io::Result<KernelLog> {
        if self.file.is_none() {
            self.reopen()?;
        }
        let Some(mut file) = self.file.take() else { return Err(ErrorKind::NotFound.into()) };
        let log = self.drain(&mut file, gaps)?;
        self.file = Some(file);
        Ok(log)
    }

    /// Reads until there are no more records, or up to the maximum.
    fn drain(&mut self, log: &mut impl Read, gaps: &mut Gaps) -> io::Result<KernelLog> {
        let (from, mut xids) = (self.from, Vec::new());
        let mut buffer = [0; LONGEST_RECORD];
        for _ in 0..MOST_READS {
            let began = since_boot();
            match log.read(&mut buffer).map_err(|error| (Errno::from_io_error(&error), error)) {
                Ok(count @ 1..) => self.take(&buffer[..count], &mut xids, gaps),
                Ok(0) | Err((Some(Errno::AGAIN), _)) => {
                    self.from = began;
                    break;
                }
                Err((Some(Errno::INTR), _)) => {}
                // Records were overwritten before they were read. The next read continues after them.
                Err((Some(Errno::PIPE), _)) => {
                    self.name_due = Some(AT_NEXT);
                    gaps.count(Gap::KernelLog);
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(KernelLog { from, until: self.from, xids })
    }

    /// Parses the records in what was read, and keeps the beginning of one that is not complete.
    fn take(&mut self, bytes: &[u8], xids: &mut Vec<LoggedXid>, gaps: &mut Gaps) {
        self.partial.extend_from_slice(bytes);
        let end = self.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        // Lines that continue a record begin with a space, and have no head.
        let (read, name_due) = (String::from_utf8_lossy(&self.partial[..end]), &mut self.name_due);
        for line in read.split('\n') {
            let is_forged = may_be_forged(line, name_due);
            let Some(xid) = LoggedXid::parse(line) else { continue };
            if xids.len() < MOST_XIDS && !is_forged {
                xids.push(xid);
            } else {
                gaps.count(Gap::KernelLog);
            }
        }
        self.partial.drain(..end);
        if self.partial.len() > LONGEST_RECORD {
            self.partial.clear();
            gaps.count(Gap::KernelLog);
        }
    }
}

/// Returns whether a record may begin with a text that a user chose: the name of a cgroup after `,cpuset=`, or the prefix
/// of a firewall's log (with the sysctl `net.netfilter.nf_log_all_netns`, also of a user's own network namespace).
fn may_be_forged(record: &str, name_due: &mut Option<u64>) -> bool {
    let Some((head, text)) = record.split_once(';') else { return false };
    let mut fields = head.split(',').skip(2);
    let Some(micros) = fields.next().and_then(|micros| micros.parse::<u64>().ok()) else { return false };
    let is_fragment = fields.next() == Some("c");
    if *name_due == Some(AT_NEXT) {
        *name_due = Some(micros);
    }
    let is_forged = is_fragment && name_due.is_some_and(|due| micros.saturating_sub(due) < NAME_PERIOD);
    if text.ends_with(BEFORE_NAME) {
        *name_due = Some(micros);
    }
    is_forged || text.contains("IN=") && text.contains(" OUT=")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel returns to each read.
    struct Reads(Vec<Result<&'static str, Errno>>);

    impl Read for Reads {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(Errno::AGAIN.into());
            }
            let text = self.0.remove(0)?;
            buffer[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        }
    }

    const FIRST: &str =
        "4,7,5,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=41, name=python3, Ch 00000008\n SUBSYSTEM=pci\n";
    const SECOND: &str = "4,9,6,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=41, name=python3, Ch 00000009\n";

    fn reader() -> KernelLogReader {
        KernelLogReader {
            path: PathBuf::new(),
            file: None,
            from: Duration::ZERO,
            partial: Vec::new(),
            name_due: None,
        }
    }

    /// Returns the sequence numbers of the errors, the gaps, and whether all was read.
    fn drained(
        reader: &mut KernelLogReader,
        reads: Vec<Result<&'static str, Errno>>,
    ) -> (Vec<u64>, u64, bool) {
        let mut gaps = Gaps::default();
        let from = reader.from;
        let log = reader.drain(&mut Reads(reads), &mut gaps).unwrap();
        assert_eq!(log.from, from);
        let found = log.xids.iter().map(|xid| xid.sequence).collect();
        (found, gaps.of(Gap::KernelLog), log.until > from)
    }

    #[test]
    fn lost_records_are_a_gap_and_the_next_are_read() {
        let reads = vec![Ok(FIRST), Err(Errno::PIPE), Err(Errno::INTR), Ok(SECOND)];
        assert_eq!(drained(&mut reader(), reads), (vec![7, 9], 1, true));
        // The lost records may have ended before a name.
        let (first, fragment) = ("6,8,1,-;x\n", SECOND.replace(",-;", ",c;").leak());
        let reads = vec![Err(Errno::PIPE), Ok(first), Ok(fragment)];
        assert_eq!(drained(&mut reader(), reads), (vec![], 2, true));
    }

    #[test]
    fn record_in_two_reads_is_one() {
        let mut reader = reader();
        let (start, end) = SECOND.split_at(40);
        assert_eq!(drained(&mut reader, vec![Ok(FIRST), Ok(start)]), (vec![7], 0, true));
        assert_eq!(drained(&mut reader, vec![Ok(end)]), (vec![9], 0, true));
    }

    /// A user can choose the name of a cgroup, but not what other parts of the kernel print.
    #[test]
    fn name_of_a_cgroup_is_no_line_of_the_driver() {
        let line = "NVRM: Xid (PCI:0000:3b:00): 31, pid=41, name=python3, Ch 00000009";
        let records = |time: u64, flags: &str| format!("4,8,{time},{flags};{line},mems_allowed=0\n");
        for (before, record, counts) in [
            ("", records(6, "c"), true),
            ("6,7,5,-;oom-kill:constraint=CONSTRAINT_MEMCG,cpuset=\n6,7,5,-;x\n", records(6, "c"), false),
            ("6,7,5,c;,cpuset=\n", records(NAME_PERIOD, "c"), false),
            ("6,7,5,c;,cpuset=\n", records(5 + NAME_PERIOD, "c"), true),
            ("6,7,5,c;,cpuset=\n", records(6, "-"), true),
            ("", records(6, "-").replace('\n', "IN=lo OUT= MAC=\n"), false),
        ] {
            let (mut gaps, mut xids) = (Gaps::default(), Vec::new());
            reader().take(format!("{before}{record}").as_bytes(), &mut xids, &mut gaps);
            assert_eq!((xids.len() == 1, gaps.of(Gap::KernelLog) == 0), (counts, counts), "{before}{record}");
        }
    }

    #[test]
    fn flooded_log_is_read_up_to_a_limit() {
        let mut reader = reader();
        let flood = vec![Ok("6,1,5,-;x\n"); MOST_READS];
        let all: Vec<_> = flood.into_iter().chain([Ok(FIRST)]).collect();
        assert_eq!(drained(&mut reader, all), (vec![], 0, false));
        assert_eq!(drained(&mut reader, vec![Ok(FIRST); MOST_XIDS + 2]), (vec![7; MOST_XIDS], 2, true));
    }

    #[test]
    fn endless_record_is_a_gap() {
        let mut reader = reader();
        let endless = vec![Ok("6,1,5,-;xxxxxxxxxxxxxxxxxxxxxxxx"); LONGEST_RECORD / 32 + 1];
        assert_eq!(drained(&mut reader, endless), (vec![], 1, true));
        assert_eq!(drained(&mut reader, vec![Ok("\n"), Ok(SECOND)]), (vec![9], 0, true));
    }

    #[test]
    fn other_errors_end_the_read() {
        assert!(reader().drain(&mut Reads(vec![Err(Errno::IO)]), &mut Gaps::default()).is_err());
    }
}
