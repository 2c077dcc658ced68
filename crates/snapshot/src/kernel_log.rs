//! Xid errors in the kernel log. Parses records of `/dev/kmsg` (`Documentation/ABI/testing/dev-kmsg`) that NVIDIA's
//! driver wrote, and decides whether a line and a process belong together.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dmem::{PciSlot, pci_slot};
use crate::{About, GpuId, ProcessKey, XidClass};

/// Beginning of the driver's line (`krcReportXid` in `kernel_rc.c` of open-gpu-kernel-modules).
const START: &str = "NVRM: Xid (PCI:";
/// End of a line about an error that follows from another one, from driver 580.
const CONSEQUENCE: &str = " caused by previous Xid ";
/// Number of characters of a line that are kept. The name has at most 60, and the channel follows it closely.
const LONGEST_TEXT: usize = 200;
/// The kernel prints the name of a cgroup, which users choose, after this text and as a fragment of its own. If another
/// task prints meanwhile, the name begins a record (`cpuset_print_current_mems_allowed` in `cpuset.c`).
const BEFORE_NAME: &str = ",cpuset=";
/// Microseconds for which no fragment counts after that.
const NAME_PERIOD: u64 = 10_000_000;
/// In place of the time of a lost record: it is not after that of the next record.
const AT_NEXT: u64 = u64::MAX;
/// Error of a process's start time, which the kernel rounds down.
const TICK: Duration = Duration::from_millis(crate::identity::MILLIS_PER_TICK);

/// The records that were read for one sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLog {
    /// Time since boot at which all earlier records had been read: all records of this sample are newer.
    pub from: Duration,
    /// The same for the records of the next sample.
    pub until: Duration,
    /// Errors that may be attributed to a process, in their order.
    pub xids: Vec<LoggedXid>,
}

/// What a snapshot keeps of the kernel log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelLogState {
    /// As [`KernelLog::until`].
    pub until: Duration,
    /// Sequence number of the last error.
    pub sequence: Option<u64>,
    /// Number of lines about each process on each GPU, by Xid. They outlive a sample in which the driver did not
    /// respond.
    pub counts: BTreeMap<(ProcessKey, GpuId), BTreeMap<u64, u64>>,
}

impl KernelLogState {
    /// The state before the first read.
    pub(crate) const NONE: Self = Self { until: Duration::ZERO, sequence: None, counts: BTreeMap::new() };
}

/// A line about an Xid error that names a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedXid {
    /// Sequence number of the record.
    pub sequence: u64,
    /// PCI address of the GPU, without the function.
    pub slot: PciSlot,
    /// Id of the MIG GPU instance.
    pub gpu_instance: Option<u32>,
    /// Id of the MIG compute instance.
    pub compute_instance: Option<u32>,
    /// Number of the Xid.
    pub xid: u64,
    /// Pid of the process.
    pub pid: u32,
    /// Name of the process, `, ` and the message. A process can give itself any name, so only a name that is known from
    /// elsewhere shows where the message begins.
    text: String,
}

impl LoggedXid {
    /// Parses a record. Returns `None` for a line that can be attributed to no process: one that was not written by the
    /// kernel, is not about an Xid error, names no process, or has an Xid that no process causes.
    pub fn parse(record: &str) -> Option<Self> {
        let (head, line) = record.split_once(';')?;
        let sequence = sequence(head)?;
        let (place, line) = line.strip_prefix(START)?.split_once("): ")?;
        let (xid, line) = line.split_once(", pid=")?;
        let (pid, text) = line.split_once(", name=")?;
        let mut place = place.split(' ');
        let slot = pci_slot(place.next()?)?;
        let mut ids = [None, None];
        for (id, name) in ids.iter_mut().zip(["GPU-I:", "GPU-CI:"]) {
            if let Some(text) = place.next() {
                *id = Some(u32::try_from(digits(text.strip_prefix(name)?)?).ok()?);
            }
        }
        let [gpu_instance, compute_instance] = ids;
        let xid = digits(xid)?;
        let is_caused_by_processes = matches!(XidClass::of(xid), XidClass::Application | XidClass::Cleanup);
        // The name is too short to contain this text.
        if !is_caused_by_processes || place.next().is_some() || text.contains(CONSEQUENCE) {
            return None;
        }
        let pid = u32::try_from(digits(pid)?).ok().filter(|pid| *pid > 0)?;
        let text = text.chars().take(LONGEST_TEXT).collect();
        Some(Self { sequence, slot, gpu_instance, compute_instance, xid, pid, text })
    }

    /// Returns whether the line is about this GPU or MIG instance.
    pub fn is_on(&self, gpu: &About) -> bool {
        let ids = gpu.mig.as_ref().map(|mig| (mig.gpu_instance, mig.compute_instance));
        let is_instance = match (self.gpu_instance, self.compute_instance) {
            (None, _) => true,
            (instance, None) => ids.is_some_and(|(found, _)| found == instance),
            both => ids == Some(both),
        };
        self.is_in_slot_of(gpu) && is_instance
    }

    /// Returns whether the line is about this GPU, or the GPU of this MIG instance, or a part of it.
    pub fn is_in_slot_of(&self, gpu: &About) -> bool {
        let slot = gpu.pci_bus_id.as_deref().and_then(|id| pci_slot(id.rsplit_once('.')?.0));
        slot == Some(self.slot)
    }

    /// Returns whether the line is about a process with this identity and name. `since` is a time before the line was
    /// written. With a channel, the line names the process that allocated the channel. Without one, drivers from 570
    /// name the process that was in a call of the driver, which need not have caused the error (`krcReportXid`;
    /// leptonai/gpud#500).
    pub fn is_of(&self, process: &ProcessKey, comm: &str, since: Duration) -> bool {
        let message = self.text.strip_prefix(&*escaped(comm)).and_then(|rest| rest.strip_prefix(", "));
        self.pid == process.pid
            && process.started() + TICK <= since
            && message.is_some_and(|message| channel(message).is_some())
    }
}

/// Recognizes records that may begin with a text that a user chose: the name of a cgroup after `,cpuset=`, or the prefix of
/// a firewall's log (with the sysctl `net.netfilter.nf_log_all_netns`, also of a user's own network namespace).
#[derive(Debug, Default)]
pub struct ForgedRecords {
    /// Time of the last record that ended with [`BEFORE_NAME`], in microseconds of the log.
    name_due: Option<u64>,
}

impl ForgedRecords {
    /// Continues after lost records, of which the last may have ended with `BEFORE_NAME`.
    pub const fn after_lost(&mut self) {
        self.name_due = Some(AT_NEXT);
    }

    /// Returns whether the next record, without the lines that continue it, may be forged.
    pub fn may_include(&mut self, record: &str) -> bool {
        let Some((head, text)) = record.split_once(';') else { return false };
        let mut fields = head.split(',').skip(2);
        let Some(micros) = fields.next().and_then(|micros| micros.parse::<u64>().ok()) else { return false };
        let is_fragment = fields.next() == Some("c");
        if self.name_due == Some(AT_NEXT) {
            self.name_due = Some(micros);
        }
        let is_forged =
            is_fragment && self.name_due.is_some_and(|due| micros.saturating_sub(due) < NAME_PERIOD);
        if text.ends_with(BEFORE_NAME) {
            self.name_due = Some(micros);
        }
        is_forged || text.contains("IN=") && text.contains(" OUT=")
    }
}

/// Returns the sequence number of a complete record of the kernel from its head, `priority,sequence,timestamp,flags`.
/// Records that users write have another facility, which the kernel enforces (`devkmsg_write`).
fn sequence(head: &str) -> Option<u64> {
    let mut fields = head.split(',');
    let priority = digits(fields.next()?)?;
    let sequence = digits(fields.next()?)?;
    digits(fields.next()?)?;
    // NVIDIA's driver prints its lines as fragments.
    (priority >> 3 == 0 && matches!(fields.next()?, "-" | "c")).then_some(sequence)
}

/// Parses a number without a sign.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Returns a name as it appears in the log (`append_char` in `printk.c`).
fn escaped(name: &str) -> String {
    let escaped = |byte: u8| match byte {
        b' '..=b'~' if byte != b'\\' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    name.bytes().map(escaped).collect()
}

/// Returns the channel that a message names: `Ch 0000000a`, `channel 0x0000000a`, `Channel 00000007`, `ChID 000c`,
/// `Channel ID 0000000d` or `ChId 0008`, after which drivers add details.
fn channel(message: &str) -> Option<u32> {
    let mut words = message.split([' ', ',', ':']).filter(|word| !word.is_empty());
    while words.any(|word| matches!(word, "Ch" | "ChID" | "ChId" | "channel" | "Channel")) {
        let hex =
            words.clone().find(|word| *word != "ID").map(|word| word.strip_prefix("0x").unwrap_or(word));
        // All forms have leading zeros. A word such as `dead` is no number.
        let hex = hex.filter(|hex| hex.starts_with(|first: char| first.is_ascii_digit()));
        if let Some(channel) = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()) {
            return Some(channel);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MigIds;

    const HEAD: &str = "4,1201,98765432,-";
    const PROCESS: ProcessKey = ProcessKey { pid: 4242, start_ticks: 100 };
    const SINCE: Duration = Duration::from_secs(2);

    fn parse(line: &str) -> Option<LoggedXid> {
        LoggedXid::parse(&format!("{HEAD};{line}"))
    }

    /// Returns the Xid, if the line belongs to the process with this name.
    fn attributed(line: &str, comm: &str) -> Option<u64> {
        parse(line).filter(|xid| xid.is_of(&PROCESS, comm, SINCE)).map(|xid| xid.xid)
    }

    #[test]
    fn lines_of_each_driver_are_parsed() {
        let cases = [
            // 515 to 550
            ("31, pid=4242, name=python, Ch 0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS", true),
            (
                "13, pid=4242, name=python, Graphics Exception: ChID 000c, Class 0000cbc0, Offset 00000000",
                true,
            ),
            ("69, pid=4242, name=python, Class Error: ChId 0008, Class 0000cbc0, ErrorCode 00000004", true),
            ("8, pid=4242, name=python, Channel 00000028", true),
            ("45, pid=4242, name=python, Ch 00000010", true),
            ("13, pid='<unknown>', name=<unknown>, Graphics Exception: ChID 000c", false),
            ("13, pid=4242, name=python, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal", false),
            // From 570, unknown processes are omitted, and without a channel another process may be the cause.
            ("31, pid=4242, name=python, channel 0x0000000a, intr 00000000. MMU Fault", true),
            ("13, pid=4242, name=python, Graphics Exception: channel 0x0000000b, Class 0000c5c0", true),
            ("13, Graphics Exception: channel 0x0000000b, Class 0000c5c0", false),
            ("94, pid=4242, name=python, Contained: SM (0x1). RST: No, D-RST: No", false),
            // 580
            (
                "31, pid=4242, name=python, channel 0x0000001e, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC4 \
                 GPCCLIENT_T1_0 faulted @ 0x0_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
                true,
            ),
            ("45, pid=4242, name=python, channel 0x00000001", true),
            ("45, pid=4242, name=python, channel 0x00000001 caused by previous Xid 149", false),
            // Errors that need a reset, or are those of the hardware.
            ("109, pid=4242, name=python, Ch 00000008, errorString CTX SWITCH TIMEOUT", false),
            ("32, pid=4242, name=python, Channel ID 0000000d intr0 00040000", false),
            ("79, pid=4242, name=python, GPU has fallen off the bus.", false),
        ];
        for (line, is_attributed) in cases {
            let found = attributed(&format!("NVRM: Xid (PCI:0000:3b:00): {line}"), "python");
            let expected = is_attributed.then(|| line.split(',').next().and_then(digits)).flatten();
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn fields_are_those_of_the_line() {
        let line = "NVRM: Xid (PCI:000A:3B:1f GPU-I:07 GPU-CI:00): 31, pid=4242, name=a, Ch 00000001";
        let expected = LoggedXid {
            sequence: 1201,
            slot: [10, 0x3b, 0x1f],
            gpu_instance: Some(7),
            compute_instance: Some(0),
            xid: 31,
            pid: 4242,
            text: "a, Ch 00000001".into(),
        };
        assert_eq!(parse(line), Some(expected));
    }

    #[test]
    fn malformed_lines_are_ignored() {
        let good = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=a, Ch 00000001";
        let whole = format!("{HEAD};{good}");
        assert!(
            (0..whole.len() - ", Ch 00000001".len() - "a".len())
                .all(|cut| LoggedXid::parse(&whole[..cut]).is_none())
        );
        assert!((0..good.len() - "0000001".len()).all(|cut| attributed(&good[..cut], "a").is_none()));
        for (part, other) in [
            ("4242", "-4242"),
            ("4242", "+4242"),
            ("4242", "0"),
            ("4242", "4294967296"),
            ("4242", "18446744073709551616"),
            ("4242", "4242 "),
            ("4242", ""),
            ("31,", "+31,"),
            ("31,", "-31,"),
            ("31,", "99999999999999999999999,"),
            ("3b", "+b"),
            ("3b", "3b:00"),
            ("3b:00)", "3b:00.0)"),
            ("3b:00)", "3b:00 GPU-I:)"),
            ("3b:00)", "3b:00 GPU-I:+1)"),
            ("3b:00)", "3b:00 GPU-CI:01)"),
            ("3b:00)", "3b:00 GPU-I:01 GPU-CI:02 GPU-CI:03)"),
            ("NVRM:", " NVRM:"),
            ("NVRM:", "x NVRM:"),
            ("PCI:", ""),
        ] {
            assert_eq!(parse(&good.replacen(part, other, 1)), None, "{other}");
        }
    }

    #[test]
    fn only_complete_records_of_the_kernel_count() {
        let line = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=a, Ch 00000001";
        for (head, is_kernel) in [
            ("0,1,2,-", true),
            ("7,1,2,-,caller=T1", true),
            // Facilities from 1 (user), which the kernel gives to all records that users write.
            ("8,1,2,-", false),
            ("12,1,2,-", false),
            ("4,1,2,c", true),
            ("4,1,2,+", false),
            ("4,1,2", false),
            ("4,1", false),
            ("4,+1,2,-", false),
            ("-4,1,2,-", false),
            ("4,18446744073709551616,2,-", false),
            ("", false),
        ] {
            assert_eq!(LoggedXid::parse(&format!("{head};{line}")).is_some(), is_kernel, "{head}");
        }
        assert_eq!(LoggedXid::parse(line), None);
    }

    #[test]
    fn name_of_a_process_changes_no_other_field() {
        let line = |name: &str| format!("NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name={name}, Ch 00000001");
        for name in ["x, pid=1", "x, name=y", "a): 13, pid=1", ", Ch 1", "", "\\x2c", "caused by previo"] {
            let logged = parse(&line(&escaped(name))).unwrap();
            assert_eq!((logged.pid, logged.xid), (4242, 31), "{name}");
            assert!(logged.is_of(&PROCESS, name, SINCE), "{name}");
            assert!(!logged.is_of(&PROCESS, "python", SINCE), "{name}");
        }
        // A channel in the name is none in the message.
        let silent =
            "NVRM: Xid (PCI:0000:3b:00): 13, pid=4242, name=x, Ch 0001, Graphics SM Global Exception";
        assert_eq!(attributed(silent, "x, Ch 0001"), None);
        // Other lines of the kernel begin with the name of a process, which has at most 15 bytes.
        assert_eq!(parse("NVRM: Xid (PCI:[77]: segfault at 0 ip 31, pid=4242, name=a, Ch 00000001"), None);
        assert_eq!(escaped("é\\\n~"), "\\xc3\\xa9\\x5c\\x0a~");
        let long = parse(&line(&"é".repeat(5000))).unwrap();
        assert_eq!(long.text.chars().count(), LONGEST_TEXT);
    }

    /// A user can choose the name of a cgroup, but not what other parts of the kernel print.
    #[test]
    fn name_of_a_cgroup_is_no_line_of_the_driver() {
        let line = "NVRM: Xid (PCI:0000:3b:00): 31, pid=41, name=python3, Ch 00000009";
        let record = |time: u64, flags: &str| format!("4,8,{time},{flags};{line},mems_allowed=0");
        for (before, record, is_forged) in [
            (&[][..], record(6, "c"), false),
            (&["6,7,5,-;oom-kill:constraint=CONSTRAINT_MEMCG,cpuset=", "6,7,5,-;x"], record(6, "c"), true),
            (&["6,7,5,c;,cpuset="], record(NAME_PERIOD, "c"), true),
            (&["6,7,5,c;,cpuset="], record(5 + NAME_PERIOD, "c"), false),
            (&["6,7,5,c;,cpuset="], record(6, "-"), false),
            (&[], record(6, "-") + "IN=lo OUT= MAC=", true),
        ] {
            let mut forged = ForgedRecords::default();
            for record in before {
                forged.may_include(record);
            }
            assert_eq!(forged.may_include(&record), is_forged, "{before:?} {record}");
        }
        let mut forged = ForgedRecords::default();
        forged.after_lost();
        assert!(!forged.may_include("6,7,5,-;x") && forged.may_include(&record(6, "c")));
    }

    #[test]
    fn only_a_number_is_a_channel() {
        for (message, expected) in [
            ("Ch 0000000a", Some(10)),
            ("Channel ID 0000000d intr0 00040000", Some(13)),
            ("a channel error: ChID 000c", Some(12)),
            ("channel dead", None),
            ("Ch", None),
            ("Ch 0x", None),
            ("Ch 000000000", Some(0)),
            ("Ch 123456789", None),
            ("Ch -1", None),
            ("Ch +1", None),
            ("SM 0", None),
        ] {
            assert_eq!(channel(message), expected, "{message}");
        }
    }

    #[test]
    fn process_must_have_started_before_the_line() {
        let xid = parse("NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=a, Ch 00000001").unwrap();
        let at = |start_ticks, pid| xid.is_of(&ProcessKey { pid, start_ticks }, "a", SINCE);
        assert!(at(0, 4242) && at(199, 4242));
        assert!(!at(200, 4242) && !at(u64::MAX, 4242) && !at(0, 4243));
    }

    #[test]
    fn instance_of_the_line_is_that_of_the_gpu() {
        let gpu = |bus: &str, ids: Option<(u32, u32)>| About {
            pci_bus_id: Some(bus.to_owned()),
            mig: ids.map(|(gpu, compute)| MigIds {
                parent: None,
                gpu_instance: Some(gpu),
                compute_instance: Some(compute),
            }),
            ..About::unnamed(0)
        };
        let line = |place: &str| {
            parse(&format!("NVRM: Xid (PCI:{place}): 31, pid=4242, name=a, Ch 00000001")).unwrap()
        };
        let (whole, instance) = (gpu("00000000:3B:00.0", None), gpu("00000000:3B:00.0", Some((7, 0))));
        for (place, on_whole, on_instance) in [
            ("0000:3b:00", true, true),
            ("0000:3b:00 GPU-I:07", false, true),
            ("0000:3b:00 GPU-I:07 GPU-CI:00", false, true),
            ("0000:3b:00 GPU-I:07 GPU-CI:01", false, false),
            ("0000:3b:00 GPU-I:01", false, false),
            ("0000:3c:00", false, false),
            ("0001:3b:00", false, false),
        ] {
            let found = (line(place).is_on(&whole), line(place).is_on(&instance));
            assert_eq!(found, (on_whole, on_instance), "{place}");
        }
        assert!(!line("0000:3b:00").is_on(&About::unnamed(0)));
    }
}
