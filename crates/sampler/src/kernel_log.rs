#![expect(clippy::disallowed_methods, reason = "opens the kernel log")]
//! Reads the records that were added to the kernel log since the previous sample, and never waits for more.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use bailiff_proc::clock::since_boot;
use bailiff_snapshot::{ForgedRecords, Gap, Gaps, KernelLog, LoggedXid};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Maximum number of reads for a sample. `/dev/kmsg` returns one record for each; the rest is read in the next sample.
const MOST_READS: usize = 4096;
/// Maximum number of errors in a sample.
const MOST_XIDS: usize = 1024;
/// More than the longest record (`PRINTK_MESSAGE_MAX`, and `CONSOLE_EXT_LOG_MAX` of older kernels).
const LONGEST_RECORD: usize = 16 << 10;

/// An open kernel log: `/dev/kmsg`, or a file with records in its format.
pub(crate) struct KernelLogReader {
    path: PathBuf,
    file: Option<File>,
    /// Time since boot at which all earlier records had been read.
    from: Duration,
    /// Beginning of a record, if a read ended within it; only of other files than `/dev/kmsg`.
    partial: Vec<u8>,
    forged: ForgedRecords,
}

impl KernelLogReader {
    /// Opens the log at its end. If that fails, the first read reports why.
    pub(crate) fn open(path: PathBuf) -> Self {
        let (from, partial, forged) = (Duration::ZERO, Vec::new(), ForgedRecords::default());
        let mut reader = Self { path, file: None, from, partial, forged };
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
                    self.forged.after_lost();
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
        let (read, forged) = (String::from_utf8_lossy(&self.partial[..end]), &mut self.forged);
        for line in read.split('\n') {
            let is_forged = forged.may_include(line);
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
            forged: ForgedRecords::default(),
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

    #[test]
    fn line_that_may_be_the_name_of_a_cgroup_is_a_gap() {
        let (mut gaps, mut xids) = (Gaps::default(), Vec::new());
        let text = format!("6,7,5,c;,cpuset=\n{}{FIRST}", SECOND.replace(",-;", ",c;"));
        reader().take(text.as_bytes(), &mut xids, &mut gaps);
        let found: Vec<u64> = xids.iter().map(|xid| xid.sequence).collect();
        assert_eq!((found, gaps.of(Gap::KernelLog)), (vec![7], 1));
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
