//! Tests the contents of a package that is staged in a directory from this build: all files are where units and
//! programs expect them, and installing the enforcer does not terminate a process. `make packages-test` installs the
//! packages themselves.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use end_to_end::leases::stdout_of;
use end_to_end::programs;
use serde_json::Value;
use tempfile::TempDir;

/// A directory with the file layout of an installed machine.
struct Staged(TempDir);

impl Staged {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let built = programs::bailiff().parent().unwrap().to_owned();
        let stage = programs::root().join("packaging/stage");
        let library = programs::built("libbailiff_quota.so");
        let output =
            Command::new(stage).args([&built, &built, &library]).arg(directory.path()).output().unwrap();
        stdout_of(&output);
        Self(directory)
    }

    /// Returns the path in this directory for a path on the machine.
    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join("root").join(path.trim_start_matches('/'))
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

#[test]
fn paths_in_units_are_installed() {
    let staged = Staged::new();
    let (users, directories) =
        (staged.read("/usr/lib/sysusers.d/bailiff.conf"), staged.read("/usr/lib/tmpfiles.d/bailiff.conf"));
    for daemon in ["bailiff-exporter", "bailiff-enforcer"] {
        let unit = staged.read(&format!("/usr/lib/systemd/system/{daemon}.service"));
        let setting =
            |name: &str| unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap();
        assert!(users.contains(&format!("u {} ", setting("User"))), "{users}");
        let (parent, _) = setting("RuntimeDirectory").split_once('/').unwrap();
        assert!(directories.contains(&format!("d /run/{parent} ")), "{directories}");
        assert!(staged.at(setting("EnvironmentFile").trim_start_matches('-')).is_file(), "{daemon}");
        let named = setting("ExecStart")
            .split_whitespace()
            .filter(|word| word.starts_with("/usr/bin/") || word.starts_with("/etc/"));
        for path in named {
            assert!(staged.at(path).is_file(), "{daemon} names {path}");
        }
        assert!(staged.at(&format!("/usr/share/man/man1/{daemon}.1.gz")).is_file());
    }
}

#[test]
fn sbom_lists_the_linked_crates_with_hashes() {
    let sbom: Value =
        serde_json::from_str(&Staged::new().read("/usr/share/doc/bailiff/sbom.cdx.json")).unwrap();
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let lock = fs::read_to_string(programs::root().join("Cargo.lock")).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut names = Vec::new();
    for crate_ in sbom["components"].as_array().unwrap() {
        let (name, version) = (text(&crate_["name"]), text(&crate_["version"]));
        assert_eq!(text(&crate_["purl"]), format!("pkg:cargo/{name}@{version}"));
        assert!(
            lock.contains(&format!("checksum = \"{}\"", text(&crate_["hashes"][0]["content"]))),
            "{name}"
        );
        names.push(name);
    }
    assert!(
        ["rustls", "redis", "libc"].iter().all(|linked| names.iter().any(|name| name == linked)),
        "{names:?}"
    );
    assert!(!names.iter().any(|name| name == "proptest" || name.starts_with("bailiff")), "{names:?}");
}

#[test]
fn hooks_of_slurm_are_scripts_without_arguments() {
    let staged = Staged::new();
    for hook in ["prolog", "epilog", "health"] {
        let path = staged.0.path().join("slurm").join(hook);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("#!/bin/sh\nexec /usr/bin/bailiff slurm {hook}\n"));
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o755, "{hook}");
        let help = Command::new(staged.at("/usr/bin/bailiff")).args(["slurm", hook, "--help"]).output();
        assert!(help.unwrap().status.success(), "{hook}");
    }
}

#[test]
fn bailiff_finds_its_quota_library() {
    let staged = Staged::new();
    let output = Command::new(staged.at("/usr/bin/bailiff")).args(["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let checks = report["checks"].as_array().unwrap();
    let library = checks.iter().find(|check| check["check"] == "quota library").unwrap();
    assert_eq!(library["state"], "ok", "{library}");
    let found = staged.at("/usr/lib/bailiff/libbailiff_quota.so").canonicalize().unwrap();
    assert_eq!(library["text"], found.to_str().unwrap());
}

#[test]
fn installed_enforcer_ends_no_process() {
    let staged = Staged::new();
    let rules = staged.at("/etc/bailiff/rules.yaml");
    let checked = Command::new(staged.at("/usr/bin/bailiff-enforcer")).arg("check").arg(&rules).output();
    stdout_of(&checked.unwrap());
    let text = staged.read("/etc/bailiff/rules.yaml");
    let modes: Vec<_> = text.lines().map(str::trim).filter(|line| line.starts_with("mode:")).collect();
    assert_eq!(modes, ["mode: dry-run"]);
    let manifest = fs::read_to_string(programs::root().join("cli/Cargo.toml")).unwrap();
    assert!(
        manifest.contains(r#"{ unit-name = "bailiff-enforcer", enable = false, start = false }"#),
        "the package would start the unit on Debian"
    );
}

/// Returns the part of the manifest for one of the two packagers, up to the next table.
fn section_of<'a>(manifest: &'a str, packager: &str) -> &'a str {
    let (_, after) = manifest.split_once(&format!("[package.metadata.{packager}]")).unwrap();
    after.split_once("\n[").map_or(after, |(table, _)| table)
}

#[test]
fn both_packages_have_the_same_files() {
    let manifest = fs::read_to_string(programs::root().join("cli/Cargo.toml")).unwrap();
    let files = |packager: &str| -> Vec<String> {
        let quoted = section_of(&manifest, packager).split('"').map(|word| word.trim_start_matches("../"));
        quoted.filter(|word| word.starts_with("target/packages/stage/")).map(str::to_owned).collect()
    };
    let staged = Staged::new();
    let globs = files("deb");
    assert_eq!(globs, files("generate-rpm"));
    let directories: Vec<&str> = globs.iter().filter_map(|glob| glob.split("/root/").nth(1)).collect();
    for file in below(&staged.at("/")) {
        let path = file.strip_prefix(staged.at("/")).unwrap().to_str().unwrap();
        let taken = directories.iter().any(|glob| path.starts_with(glob.trim_end_matches(['*', '/'])));
        assert!(taken, "no package takes {path}");
    }
}

/// Returns the links in a Markdown or HTML page, except links to other sites and to headings on the page itself.
fn links(page: &str) -> Vec<String> {
    let marks = [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"'), ("href=\"", '"')];
    let found = marks.iter().flat_map(|(mark, end)| {
        page.split(mark).skip(1).filter_map(move |rest| rest.split_once(*end)).map(|(link, _)| link)
    });
    let own = found.filter(|link| !link.contains("://") && !link.starts_with('#'));
    own.map(|link| link.split('#').next().unwrap().to_owned()).collect()
}

#[test]
fn man_pages_reference_installed_files() {
    let staged = Staged::new();
    let pages = below(&staged.at("/usr/share/doc/bailiff"));
    let pages: Vec<_> =
        pages.iter().filter(|page| page.extension().is_some_and(|kind| kind == "md")).collect();
    let mut seen = 0;
    for page in pages {
        for link in links(&fs::read_to_string(page).unwrap()) {
            let to = if link.starts_with('/') { staged.at(&link) } else { page.with_file_name(&link) };
            assert!(to.exists(), "{} links to {link}, which does not exist", page.display());
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} links");
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
}

#[test]
fn readme_build_includes_the_quota_library() {
    let readme = fs::read_to_string(programs::root().join("README.md")).unwrap();
    let (_, block) = readme.split_once("## Run it\n\n```sh\n").unwrap();
    let (build, _) = block.split_once("bailiff info").unwrap();
    let (programs_line, rest) = build.split_once('\n').unwrap();
    assert!(programs_line.starts_with("cargo build --release"), "{programs_line}");
    // A release build would take minutes, so this build's program is copied to a directory without the library.
    let directory = tempfile::tempdir().unwrap();
    fs::copy(programs::bailiff(), directory.path().join("bailiff")).unwrap();
    let script = format!("{rest}PATH=$DIRECTORY:$PATH bailiff run --vram 1GiB -- echo begun");
    let output = Command::new("bash")
        .args(["-euc", &script])
        .current_dir(programs::root())
        .env("DIRECTORY", directory.path())
        .env("BAILIFF_QUOTA_DIR", directory.path())
        .env_remove("BAILIFF_QUOTA_LIBRARY")
        .output()
        .unwrap();
    assert_eq!(stdout_of(&output), "begun\n");
}
