//! Tests the state of a pool in a snapshot: from a real Redis server, and from audits and a `/proc` that the
//! tests create.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test starts a server and makes a /proc"
)]

mod server;

use std::fs;
use std::path::Path;
use std::time::Duration;

use bailiff_lease::Leases as _;
use bailiff_lease::audit::Audit;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::report::Node;
use bailiff_lease::{Pool, Ticket, TicketStatus};
use bailiff_snapshot::{GpuState, Leases, PidNamespace, ProcessKey, Truth};
use redis::Connection;
use server::Server;

const PATIENCE: Duration = Duration::from_secs(5);
const BOOT: Duration = Duration::from_secs(100);

fn node() -> Node {
    Node::read(Path::new("/proc"), PidNamespace::Unknown)
}

fn ticket(lease: &str, want: u32, priority: i32) -> Ticket {
    let mut about = LocalHost::read().holder(std::process::id());
    about.extend([("user", "alice".to_owned()), ("uid", "1000".to_owned()), ("mode", "run".to_owned())]);
    if lease == "garbled" {
        about.push(("asked", "soon".to_owned()));
    }
    let ttl = Duration::from_mins(1);
    Ticket { lease: lease.to_owned(), want, priority, ttl, nonblock: false, about }
}

fn raw(server: &Server) -> Connection {
    redis::Client::open(server.address()).unwrap().get_connection().unwrap()
}

fn gpu_states(leases: &Leases) -> Vec<(&str, GpuState)> {
    let mut gpu_states: Vec<_> = leases.gpus.iter().map(|gpu| (gpu.id.as_str(), gpu.gpu_state)).collect();
    gpu_states.sort_unstable();
    gpu_states
}

#[test]
fn snapshot_reports_leases_and_gpu_states() {
    let server = Server::start(&[]);
    let mut pool = Pool::open(&server.address(), "GPU", PATIENCE).unwrap();
    let uuids = [(0, Some("GPU-a".to_owned())), (1, None), (2, None)];
    pool.init(&uuids, 0, false).unwrap();
    assert!(matches!(pool.request(&ticket("ours", 1, 0)), Ok(TicketStatus::Held(_))));
    let before = pool.audit().unwrap().leases(&node(), BOOT);
    assert_eq!(before.held[0].silent_ms, None, "the lease was not renewed yet");
    pool.touch("ours", Duration::from_mins(1), Some(1)).unwrap();
    pool.touch("ours", Duration::from_mins(2), None).unwrap();
    // GPU 1 was taken by a client of GPU.py that has exited. GPU 2 was popped by a client that exited before it
    // wrote a record.
    let () = redis::cmd("RPOP").arg("GPU_IDLE").query(&mut raw(&server)).unwrap();
    let record = redis::cmd("HSET")
        .arg("GPU_GPU1")
        .arg("PID")
        .arg("4194303")
        .arg("TIME")
        .arg("then")
        .exec(&mut raw(&server));
    record.unwrap();
    assert!(matches!(pool.request(&ticket("greedy", 3, 7)), Ok(TicketStatus::Waiting { .. })));
    let leases = pool.audit().unwrap().leases(&node(), BOOT);
    assert_eq!(
        gpu_states(&leases),
        [("0", GpuState::Leased), ("1", GpuState::Legacy), ("2", GpuState::Gathering)]
    );
    let held = &leases.held[0];
    let holder = held.holder.unwrap();
    assert_eq!((holder.pid, held.alive), (std::process::id(), Truth::True));
    assert_eq!(
        (held.lease.as_str(), held.token, held.gpus.as_slice()),
        ("ours", 1, ["0".to_owned()].as_slice())
    );
    assert_eq!(
        (held.user.as_deref(), held.uid, held.mode.as_deref()),
        (Some("alice"), Some(1000), Some("run"))
    );
    assert!(held.age_ms.unwrap() >= held.silent_ms.unwrap() && held.left_ms > 60_000, "{held:?}");
    let record = leases.gpus.iter().find_map(|gpu| gpu.record.as_ref()).unwrap();
    assert_eq!((record.pid, record.time.as_str(), record.alive), (Some(4_194_303), "then", Truth::False));
    let waiting = &leases.queue[0];
    assert_eq!((waiting.lease.as_str(), waiting.want, waiting.priority), ("greedy", 3, 7));
    assert!(waiting.age_ms.is_some());
    assert_eq!(leases.tally.append_only, Some(false));
}

#[test]
fn redis_counts_events_and_waits() {
    let server = Server::start(&["--appendonly", "yes"]);
    let mut pool = Pool::open(&server.address(), "GPU", PATIENCE).unwrap();
    pool.init(&[(0, None)], 0, false).unwrap();
    let tally = |pool: &mut Pool| pool.audit().unwrap().leases(&node(), BOOT).tally;
    assert_eq!((tally(&mut pool).waits, tally(&mut pool).append_only), (None, Some(true)));
    for lease in ["a", "b"] {
        assert!(matches!(pool.request(&ticket(lease, 1, 0)), Ok(TicketStatus::Held(_))));
        pool.release(lease, None, (0, 1)).unwrap();
    }
    let counted = tally(&mut pool);
    let events: Vec<(&str, u64)> =
        counted.events.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(events, [("grant", 2), ("released", 2)]);
    let waits = counted.waits.unwrap();
    let all: u64 = waits.buckets.iter().map(|(_, count)| count).sum();
    assert_eq!((all + waits.longer, waits.buckets.len()), (2, 9));
    // If a counter or the time in a ticket is invalid, a count is lost, but not a grant.
    for field in ["event:grant", "event:<b>", "event:Grant"] {
        redis::cmd("HSET").arg("GPU_V2:COUNTS").arg(field).arg("many").exec(&mut raw(&server)).unwrap();
    }
    assert!(matches!(pool.request(&ticket("garbled", 1, 0)), Ok(TicketStatus::Held(_))));
    let counted = tally(&mut pool);
    assert_eq!(counted.events.keys().collect::<Vec<_>>(), ["released"]);
    redis::cmd("DEL").arg("GPU_V2:COUNTS").exec(&mut raw(&server)).unwrap();
    redis::cmd("SET").arg("GPU_V2:COUNTS").arg("x").exec(&mut raw(&server)).unwrap();
    pool.release("garbled", None, (0, 1)).unwrap();
    assert!(tally(&mut pool).events.is_empty());
}

#[test]
fn invalid_utf8_in_a_command_is_tolerated() {
    let server = Server::start(&[]);
    let mut pool = Pool::open(&server.address(), "GPU", PATIENCE).unwrap();
    pool.init(&[(0, None), (1, None)], 0, false).unwrap();
    pool.request(&ticket("ours", 1, 0)).unwrap();
    pool.request(&ticket("lost", 1, 0)).unwrap();
    redis::cmd("HSET").arg("GPU_V2:LEASE:ours").arg("cmd").arg(b"\xff\xfe").exec(&mut raw(&server)).unwrap();
    redis::cmd("DEL").arg("GPU_V2:LEASE:lost").exec(&mut raw(&server)).unwrap();
    let leases = pool.audit().unwrap().leases(&node(), BOOT);
    assert_eq!(leases.held.len(), 1);
    assert_eq!(gpu_states(&leases), [("0", GpuState::Leased), ("1", GpuState::Leased)]);
}

/// Returns a `/proc` of boot `here` with processes 1, 40 and 41, which started at tick 7. The last is a zombie.
fn procfs() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::create_dir_all(root.join("sys/kernel/random")).unwrap();
    fs::write(root.join("sys/kernel/random/boot_id"), "here\n").unwrap();
    fs::create_dir_all(root.join("self/ns")).unwrap();
    std::os::unix::fs::symlink("pid:[77]", root.join("self/ns/pid")).unwrap();
    for (pid, state) in [(1, 'S'), (40, 'S'), (41, 'Z')] {
        fs::create_dir(root.join(pid.to_string())).unwrap();
        let rest = "1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0";
        fs::write(root.join(format!("{pid}/stat")), format!("{pid} (x) {state} {rest}\n")).unwrap();
    }
    directory
}

#[test]
fn holder_is_alive_if_pid_start_boot_and_namespace_match() {
    let procfs = procfs();
    let alive = |about: &str, namespace| {
        let lease = format!(r#"{{"lease":"x","state":"held","expires":2.5e12,{about}}}"#);
        let text = format!(r#"{{"now":1000,"barrier":null,"gpus":[],"leases":[{lease}],"queue":[]}}"#);
        let audit: Audit = serde_json::from_str(&text).unwrap();
        let held = audit.leases(&Node::read(procfs.path(), namespace), BOOT).held.remove(0);
        (held.holder.map(|key| key.pid), held.alive)
    };
    let cases = [
        (r#""boot":"here","pidns":"77","pid":"40","start":"7""#, (Some(40), Truth::True)),
        (r#""boot":"here","pidns":"77","pid":"40","start":"8""#, (Some(40), Truth::False)),
        (r#""boot":"here","pidns":"77","pid":"41","start":"7""#, (Some(41), Truth::False)),
        (r#""boot":"here","pidns":"77","pid":"99","start":"7""#, (Some(99), Truth::False)),
        (r#""boot":"here","pidns":"77","pid":"99","start":"7","mode":"compat""#, (Some(99), Truth::Unknown)),
        (
            r#""boot":"here","pidns":"77","pid":"99","start":"7","mode":"compat","chain":"99:7,40:7""#,
            (Some(99), Truth::True),
        ),
        (r#""boot":"here","pidns":"78","pid":"40","start":"7""#, (None, Truth::Unknown)),
        (r#""boot":"here","pidns":"4026531836","pid":"40","start":"7""#, (None, Truth::Unknown)),
        (r#""boot":"there","pidns":"77","pid":"40","start":"7","host":"elsewhere""#, (None, Truth::Unknown)),
        (r#""boot":"here","pidns":"77","pid":"40""#, (None, Truth::Unknown)),
        (r#""pid":"40""#, (None, Truth::Unknown)),
    ];
    for (about, expected) in cases {
        assert_eq!(alive(about, PidNamespace::Unknown), expected, "{about}");
    }
    let hosts = r#""boot":"here","pidns":"4026531836","pid":"40","start":"7""#;
    assert_eq!(
        alive(hosts, PidNamespace::Host),
        (Some(40), Truth::True),
        "the settings declare this /proc as the host's"
    );
    fs::remove_dir_all(procfs.path().join("1")).unwrap();
    let gone = r#""boot":"here","pidns":"77","pid":"99","start":"7""#;
    assert_eq!(
        alive(gone, PidNamespace::Unknown),
        (Some(99), Truth::Unknown),
        "hidepid hides running processes"
    );
}

#[test]
fn record_with_evidence_names_one_process() {
    let procfs = procfs();
    let record_with = |seen: &str| {
        let record = format!(r#"{{"pid":"40","time":"then"{seen}}}"#);
        let gpu = format!(r#"{{"id":"0","idle":0,"pot":0,"bar":0,"record":{record}}}"#);
        let text = format!(r#"{{"now":1000,"barrier":null,"gpus":[{gpu}],"leases":[],"queue":[]}}"#);
        let audit: Audit = serde_json::from_str(&text).unwrap();
        let gpu = audit
            .leases(&Node::read(procfs.path(), PidNamespace::Unknown), BOOT)
            .gpus
            .remove(0)
            .record
            .unwrap();
        (gpu.start_ticks, gpu.alive)
    };
    let seen = |boot: &str, pidns: &str, time: &str, prompt: bool, ticks: u64| {
        let processes = format!(r#"[{{"pid":39,"start_ticks":5}},{{"pid":40,"start_ticks":{ticks}}}]"#);
        let evidence = format!(
            r#"{{"pid":"40","time":"{time}","host":"host","boot":"{boot}","pidns":"{pidns}","uid":1000,"prompt":{prompt},"whole":true,"processes":{processes},"session":1,"at_ms":0}}"#
        );
        record_with(&format!(r#","seen":{}"#, serde_json::Value::from(evidence)))
    };
    assert_eq!(record_with(""), (None, Truth::True), "the record matches any process with this pid");
    assert_eq!(seen("here", "77", "then", true, 7), (Some(7), Truth::True));
    assert_eq!(seen("here", "77", "then", true, 6), (Some(6), Truth::False), "the pid was reused");
    assert_eq!(
        seen("there", "77", "then", true, 6),
        (None, Truth::Unknown),
        "the evidence is from another host"
    );
    for (why, found) in [
        ("of another record", seen("here", "77", "earlier", true, 6)),
        ("of another namespace", seen("here", "78", "then", true, 6)),
        ("collected later", seen("here", "77", "then", false, 6)),
    ] {
        assert_eq!(found, (None, Truth::True), "{why}");
    }
}

#[test]
fn chain_is_reported_without_the_holder() {
    let procfs = procfs();
    let lease = r#"{"lease":"x","state":"held","expires":900,"boot":"here","pidns":"77","pid":"40","start":"7","mode":"compat","chain":"40:7,39:5,junk"}"#;
    let text = format!(r#"{{"now":1000,"barrier":null,"gpus":[],"leases":[{lease}],"queue":[]}}"#);
    let audit: Audit = serde_json::from_str(&text).unwrap();
    let held = audit.leases(&Node::read(procfs.path(), PidNamespace::Unknown), BOOT).held.remove(0);
    assert_eq!(held.chain, [ProcessKey { pid: 39, start_ticks: 5 }]);
    assert_eq!(held.left_ms, -100, "the lease has expired");
}
