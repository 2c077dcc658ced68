//! Tests the client with a script in place of the daemon.
#![expect(clippy::disallowed_methods, reason = "writes programs and checks what they leave behind")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use tempfile::TempDir;

use super::*;
use crate::place::LOGS;

fn script(home: &TempDir, text: &str) -> PathBuf {
    let path = home.path().join("control");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(&path).unwrap();
    write!(file, "#!/bin/sh\n{text}\n").unwrap();
    path
}

fn query(text: &str, question: Question<'_>, patience: Duration) -> Result<String, ControlError> {
    let home = tempfile::tempdir().unwrap();
    Control::new(script(&home, text)).at("/run/mps0").within(patience).query(question)
}

const LONG: Duration = Duration::from_mins(1);

#[test]
fn command_runs_in_the_pipe_directory_with_a_clean_environment() {
    let output = query(
        "read line; echo \"$line;$CUDA_MPS_PIPE_DIRECTORY;${HOME-none};$#\"; read more || echo end",
        Question::Clients(7),
        LONG,
    );
    assert_eq!(output.unwrap(), "get_client_list 7;/run/mps0;none;0\nend\n");
}

#[test]
fn commands_are_spelled_as_the_daemon_wants_them() {
    let cases = [
        (Question::Status(7), "get_server_status 7"),
        (Question::Processes, "ps"),
        (Question::DefaultMemoryLimit("0"), "get_default_device_pinned_mem_limit 0"),
        (Question::TerminateClient(7, 8), "terminate_client 7 8"),
        (Question::Quit(None), "quit"),
        (Question::Quit(Some(Duration::from_millis(20))), "quit -t 1"),
        (Question::Quit(Some(Duration::from_secs(30))), "quit -t 30"),
        (Question::ClientsV3, "client list --all"),
    ];
    for (question, expected) in cases {
        assert_eq!(question.to_string(), expected);
    }
}

#[test]
fn errors_are_distinguished() {
    let missing = Control::new("/nonexistent/control").query(Question::Servers);
    assert!(matches!(missing, Err(ControlError::NoProgram { .. })), "{missing:?}");
    let none = query("echo 'Cannot find MPS control daemon process' >&2; exit 1", Question::Servers, LONG);
    assert!(matches!(none, Err(ControlError::NoDaemon)), "{none:?}");
    let refused = query("echo 'Not enough privilege to execute quit command'", Question::Quit(None), LONG);
    assert!(matches!(&refused, Err(ControlError::Refused(line)) if line.contains("quit")), "{refused:?}");
    let broken = query("echo broken >&2; exit 3", Question::Servers, LONG);
    assert!(matches!(&broken, Err(ControlError::Strange(text)) if text == "broken"), "{broken:?}");
    let silent = query("exit 3", Question::Servers, LONG);
    assert!(matches!(&silent, Err(ControlError::Strange(text)) if text.contains('3')), "{silent:?}");
}

/// The client's child must be killed too, because it would survive the exit of the shell.
#[test]
fn a_client_that_hangs_is_killed_with_all_that_it_started() {
    let home = tempfile::tempdir().unwrap();
    let pid = home.path().join("pid");
    let text = format!("sleep 1000 & echo $! > {}; wait", pid.display());
    let control = Control::new(script(&home, &text)).within(Duration::from_millis(300));
    assert!(matches!(control.query(Question::Servers), Err(ControlError::NoAnswer(_))));
    let pid: u32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let stat = format!("/proc/{pid}/stat");
    for _ in 0..10_000 {
        let text = fs::read_to_string(&stat).unwrap_or_default();
        if text.is_empty() || text.contains(") Z ") {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("{pid} still runs");
}

#[test]
fn an_answer_that_was_cut_is_none() {
    let output = |bytes: usize| {
        let text = format!("head -c {bytes} /dev/zero | tr '\\0' 7");
        query(&text, Question::Servers, LONG)
    };
    assert_eq!(output((256 << 10) - 1).unwrap().len(), (256 << 10) - 1);
    for bytes in [256 << 10, 1_000_000] {
        let cut = output(bytes);
        assert!(matches!(&cut, Err(ControlError::Strange(text)) if text.contains("262144 bytes")), "{cut:?}");
    }
}

/// A daemon may keep the output of its launcher open, so the exit of the launcher is what counts.
#[test]
fn daemon_that_keeps_its_output_open_is_not_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let pid = home.path().join("pid");
    let text = format!("echo \"$1 $CUDA_MPS_LOG_DIRECTORY\"; sleep 1000 & echo $! > {}", pid.display());
    let control = Control::new(script(&home, &text)).at("/run/mps0").within(LONG);
    assert_eq!(control.start(&[(LOGS, "/log/mps0")]).unwrap(), "-d /log/mps0\n");
    let pid = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
