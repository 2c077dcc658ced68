//! Files of `/proc`, replies and logs of MPS, answers of the kubelet, memory sizes, and label values. Values must be from the input.

use std::time::Duration;

use bailiff_engine::value::Unit;
use bailiff_engine::yaml::quantity;
use bailiff_exposition::{Labels, bounded, is_unprintable};
use bailiff_mps::log::Event;
use bailiff_mps::place::{Part, ProcessView};
use bailiff_mps::reply::{self, ReplyError};
use bailiff_size::{Bytes, bytes, limit, size, split};
use bailiff_snapshot::pod_resources::{DeviceId, parse_allocatable, parse_list};
use bailiff_snapshot::workload::{Home, enclosure};
use bailiff_snapshot::{
    Claim, Io, LoggedXid, Place, ProcessKey, Status, environment, locks as locks_of, place, redact,
    stat as stat_of, text_limit,
};

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// Returns whether the digits of a number are in a text.
pub(crate) fn has_number(text: &str, number: impl ToString) -> bool {
    text.contains(&number.to_string())
}

pub(crate) fn cgroup(data: &[u8]) {
    let text = text(data);
    let place = Place::parse(&text);
    let names = [&place.boundary, &place.container, &place.slurm_job, &place.slurm_step, &place.unit];
    for name in names.into_iter().flatten().chain([&place.cgroup]) {
        assert!(text.contains(name.as_str()), "{name:?} is not in the file");
    }
    if let Some(uid) = &place.pod_uid {
        assert!(text.replace('_', "-").contains(uid.as_str()));
    }
    let named = place.container.is_some() || place.pod_uid.is_some() || place.slurm_job.is_some();
    assert_eq!(place.boundary.is_some(), named, "a boundary belongs to a container, pod or job: {place:?}");
    assert!(text.contains(place.confinement()));
    if let Home::Named(name) = Home::of(&place) {
        let (_, path) = name.split_once(':').expect("a workload is a kind and a path");
        assert!(text.contains(path));
    }
    assert!(
        enclosure(&place).is_none_or(|path| text.contains(path.split(':').next_back().unwrap_or_default()))
    );
    let written = serde_json::to_string(&place).expect("a place has a JSON form");
    assert_eq!(serde_json::from_str::<Place>(&written).ok(), Some(place));
    if let Some((namespace, pod, uid)) = place::pod_directory(&text) {
        assert_eq!(format!("{namespace}_{pod}_{uid}"), text);
    }
}

/// Names and ids are in the message. A message that is cut has no other devices.
pub(crate) fn pod_resources(data: &[u8]) {
    let is_in = |text: &str| data.windows(text.len()).any(|part| part == text.as_bytes());
    if let Ok(list) = parse_list(data) {
        for device in &list.devices {
            let container = &device.container;
            for name in [&container.namespace, &container.pod, &container.container, &device.resource] {
                assert!(!name.is_empty() && is_in(name), "{device:?}");
            }
            assert!(device.id.is_empty() || is_in(&device.id), "{device:?}");
            assert!(DeviceId::parse(&device.id).is_none_or(|id| device.id.starts_with(id.device)));
        }
        for device in &list.dynamic {
            assert!([&device.driver, &device.pool, &device.device].into_iter().all(|name| is_in(name)));
        }
        if let Ok(part) = parse_list(&data[..data.len() / 2]) {
            let ids: Vec<&str> = list.devices.iter().map(|device| device.id.as_str()).collect();
            assert!(part.devices.iter().all(|device| ids.contains(&device.id.as_str())));
        }
    }
    if let Ok(all) = parse_allocatable(data) {
        assert!(all.iter().all(|(device, count)| is_in(device) && *count > 0));
    }
}

pub(crate) fn stat(data: &[u8]) {
    let Some(stat) = stat_of::parse(data) else { return };
    let text = text(data);
    for number in
        [u64::from(stat.key.pid), stat.key.start_ticks, u64::from(stat.ppid), u64::from(stat.threads)]
    {
        assert!(has_number(&text, number), "{number} is not in the line");
    }
    assert!(text.contains(&stat.comm));
    // The name of a process cannot change the other fields.
    let end = data.iter().rposition(|byte| *byte == b')').unwrap_or_default();
    let renamed = [format!("{} (a) R 1 (", stat.key.pid).as_bytes(), &data[end..]].concat();
    let renamed = stat_of::parse(&renamed).expect("the name contains any bytes");
    assert_eq!(stat_of::Stat { comm: stat.comm.clone(), ..renamed }, stat);
}

/// The first byte is the place at which the file is cut.
pub(crate) fn status(data: &[u8]) {
    let Some((cut, data)) = data.split_first() else { return };
    let (whole, cut) = (Status::new(data), Status::new(&data[..data.len().min((*cut).into())]));
    assert!(cut.pids().is_none_or(|pids| whole.pids() == Some(pids)));
    assert!(cut.uids().is_none_or(|uids| whole.uids() == Some(uids)));
    assert!(cut.mask("SigIgn:").is_none_or(|mask| whole.mask("SigIgn:") == Some(mask)));
    let text = text(data);
    assert!(
        whole.pids().is_none_or(|pids| !pids.is_empty() && pids.iter().all(|pid| has_number(&text, pid)))
    );
    if let Some(io) = Io::parse(&text) {
        assert!(has_number(&text, io.read_bytes) && has_number(&text, io.write_bytes));
    }
}

/// `cmdline` and `environ`, which have the same form.
pub(crate) fn command(data: &[u8]) {
    assert!(redact::command(data).len() <= redact::MOST + '…'.len_utf8());
    let word = data.split(|byte| *byte == 0).next().unwrap_or_default();
    assert_eq!(redact::command(&[b"--api-key=", word].concat()), "--api-key=…");
    if !word.is_empty() && !word.starts_with(b"-") {
        assert_eq!(redact::command(&[b"--token\0", word].concat()), "--token …");
    }
    if let Some(notebook) = environment::notebook(data) {
        let is_in = text(data).contains(&format!("{}={notebook}\0", environment::NOTEBOOK_VARIABLE));
        assert!(is_in && text_limit::fits(&notebook));
    }
    if let Claim::Lease(name) = Claim::of_environment(data) {
        assert!(name.len() <= Claim::MOST && text(data).contains(&format!("{}={name}", Claim::VARIABLE)));
    }
    for exe in [None, Some("nvidia-cuda-mps-control"), Some("nvidia-cuda-mps-server")] {
        let process = ProcessView { exe, cmdline: data, environ: Some(data) };
        let directories = match process.part() {
            Some(Part::Daemon(daemon)) => daemon.directories,
            Some(Part::Server(directories)) => directories,
            Some(Part::Asker) | None => None,
        };
        assert!(directories.is_none_or(|found| found.pipes.is_absolute() && found.logs.is_absolute()));
    }
}

/// A record, and the name of a process, which cannot change to which process a line is attributed.
pub(crate) fn kernel_log(data: &[u8]) {
    let text = text(data);
    let (record, name) = text.split_once('\n').unwrap_or((&text, "python3"));
    let since = Duration::from_secs(1);
    if let Some(xid) = LoggedXid::parse(record) {
        for number in [xid.sequence, xid.xid, xid.pid.into()] {
            assert!(has_number(record, number), "{number} is not in the record");
        }
        let key = ProcessKey { pid: xid.pid, start_ticks: 0 };
        assert!(!xid.is_of(&key, name, since) || record.contains(", name="));
        assert!(!xid.is_of(&ProcessKey { pid: xid.pid ^ 1, ..key }, name, since), "of another process");
    }
    let name: String =
        name.chars().filter(|char| (' '..='~').contains(char) && *char != '\\').take(15).collect();
    let named = format!("4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=41, name={name}, Ch 00000001");
    let xid = LoggedXid::parse(&named).expect("a line with any name");
    assert!(xid.pid == 41 && xid.is_of(&ProcessKey { pid: 41, start_ticks: 0 }, &name, since));
}

pub(crate) fn locks(data: &[u8]) {
    let text = text(data);
    for (kind, pid) in locks_of::takers(&text, "00:19:1234") {
        let is_line = |line: &str| line.contains("FLOCK") && line.contains(kind) && has_number(line, pid);
        assert!(text.lines().any(|line| is_line(line) && line.contains("00:19:1234")));
    }
    if let Some(inode) = bailiff_proc::namespace_inode(&text) {
        assert!(has_number(&text, inode));
    }
}

pub(crate) fn mps(data: &[u8]) {
    let text = text(data);
    for list in [reply::servers(&text), reply::clients(&text), reply::servers_v3(&text)] {
        match list {
            Ok(pids) => assert!(pids.iter().all(|pid| has_number(&text, pid))),
            Err(ReplyError::Strange(shown)) => assert!(shown.chars().count() <= 200),
            Err(ReplyError::NoServer | ReplyError::Refused(_)) => {}
        }
    }
    for client in reply::processes(&text).into_iter().flatten() {
        assert!(has_number(&text, client.pid) && has_number(&text, client.server));
        assert!(client.device.is_none_or(|device| text.contains(&device)));
    }
    assert!(
        reply::percentage(&text).is_ok_and(|share| (0.0..=100.0).contains(&share))
            || reply::percentage(&text).is_err()
    );
    let _ =
        (reply::memory_limit(&text), reply::status(&text), reply::terminated(&text), reply::refusal(&text));
    for line in text.lines() {
        match Event::of(line) {
            Event::ServerStarting { server: pid, uid } | Event::ClientNew { client: pid, uid, .. } => {
                assert!(has_number(line, pid) && uid.is_none_or(|uid| has_number(line, uid)));
            }
            Event::ServerReady { server } | Event::ServerExited { server, .. } => {
                assert!(has_number(line, server));
            }
            _ => {}
        }
        // A command that a user sent to the daemon is no event.
        let quoted = format!("[2026-11-21 06:27:24.009 Control 18763] Cmd: {line}");
        assert_eq!(Event::of(&quoted), Event::Routine);
    }
}

pub(crate) fn sizes(data: &[u8]) {
    let text = text(data);
    if let Ok(size) = size(&text) {
        let (digits, unit) = split(&text);
        assert!(text.starts_with(digits) && text.ends_with(unit) && !unit.is_empty());
        assert!(size == 0 || Bytes(size.into()).to_string().parse::<f64>().is_err());
    }
    if let Some(bytes) = bytes(&text) {
        assert_eq!(limit(&text), Some(bytes));
        assert_eq!(self::bytes(&format!("{bytes}B")), Some(bytes));
    }
    for unit in [Unit::Percent, Unit::Bytes, Unit::BytesPerSecond, Unit::Duration, Unit::Count] {
        assert!(
            quantity::number(&text, unit).is_ok_and(|number| number.is_finite() && number >= 0.0)
                || quantity::number(&text, unit).is_err()
        );
    }
    let _ = (quantity::end_of_day(&text), quantity::moment(&text));
}

/// A value that a process chose cannot end its label, and a page shows no unprintable character.
pub(crate) fn labels(data: &[u8]) {
    let text = text(data);
    let labels = Labels::default().with("a", &text).with_pid(7);
    let open = labels.open();
    let open =
        open.strip_prefix("{a=\"").or_else(|| open.strip_prefix('{')).expect("labels begin with a brace");
    let mut rest = open.strip_suffix("pid=\"7\"").expect("the last label is whole").chars();
    while let Some(character) = rest.next() {
        match character {
            '\\' => assert!(matches!(rest.next(), Some('\\' | '"' | 'n'))),
            '"' => return assert_eq!(rest.as_str(), ","),
            other => assert!(!is_unprintable(other) || other == '\u{fffd}'),
        }
    }
    assert!(text.is_empty() && bounded(&text).is_empty(), "the label does not end");
}
