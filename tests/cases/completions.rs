//! `bailiff completions`: what is printed is a program of its shell's, and completes words.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a case runs programs and fails loudly")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use end_to_end::leases::said;
use end_to_end::programs;
use tempfile::TempDir;

fn completions(shell: &str) -> Output {
    Command::new(programs::bailiff()).args(["completions", shell]).output().unwrap()
}

/// What is printed for a shell, in a file.
fn written(shell: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("completions");
    fs::write(&path, said(&completions(shell))).unwrap();
    (folder, path)
}

#[test]
fn each_shell_can_read_its_own() {
    for (shell, begin) in [("bash", "_bailiff() {"), ("zsh", "#compdef bailiff"), ("fish", "# Print an")] {
        let (_folder, path) = written(shell);
        assert!(fs::read_to_string(&path).unwrap().starts_with(begin), "{shell}");
        let flag = if shell == "fish" { "--no-execute" } else { "-n" };
        // Only bash is everywhere.
        if shell == "bash" || Command::new(shell).arg("--version").output().is_ok() {
            said(&Command::new(shell).arg(flag).arg(path).output().unwrap());
        }
    }
    assert_eq!(completions("tcsh").status.code(), Some(64));
}

#[test]
fn bash_completes_commands_and_flags() {
    let (_folder, path) = written("bash");
    for (words, expected) in [
        ("bailiff le", "lease"),
        ("bailiff lease re", "release reap"),
        ("bailiff run --vr", "--vram"),
        ("bailiff lease run --on-lost t", "term"),
        ("bailiff completions f", "fish"),
    ] {
        let script = format!(
            ". {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _bailiff bailiff \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\"",
            path.display()
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert_eq!(said(&output).trim(), expected, "{words}");
    }
}
