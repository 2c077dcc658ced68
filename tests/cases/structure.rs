//! Tests the structure of the repository: dependencies between crates, imports between modules, links between
//! documents.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a case reads files, runs cargo and fails loudly"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use end_to_end::programs::root;
use serde_json::Value;

/// Each crate that is shipped, and the workspace crates on which it may depend.
const DEPENDENCIES: [(&str, &[&str]); 18] = [
    ("bailiff-snapshot", &[]),
    ("bailiff-subprocess", &[]),
    ("bailiff-size", &[]),
    ("bailiff-ledger", &[]),
    ("bailiff-lifecycle", &[]),
    ("bailiff-http", &["bailiff-lifecycle"]),
    ("bailiff-proc", &["bailiff-snapshot"]),
    ("bailiff-lease", &["bailiff-proc", "bailiff-snapshot"]),
    ("bailiff-mps", &["bailiff-snapshot", "bailiff-subprocess"]),
    ("bailiff-exposition", &["bailiff-size", "bailiff-snapshot"]),
    ("bailiff-prometheus", &["bailiff-exposition"]),
    ("bailiff-sampler", &["bailiff-ledger", "bailiff-mps", "bailiff-proc", "bailiff-snapshot"]),
    ("bailiff-quota", &["bailiff-size"]),
    ("bailiff-engine", &["bailiff-size", "bailiff-snapshot"]),
    ("bailiff-kubernetes", &["bailiff-lifecycle", "bailiff-snapshot"]),
    (
        "bailiff-exporter",
        &[
            "bailiff-exposition",
            "bailiff-http",
            "bailiff-lease",
            "bailiff-lifecycle",
            "bailiff-mps",
            "bailiff-proc",
            "bailiff-sampler",
            "bailiff-snapshot",
        ],
    ),
    (
        "bailiff-enforcer",
        &[
            "bailiff-engine",
            "bailiff-exposition",
            "bailiff-http",
            "bailiff-lease",
            "bailiff-lifecycle",
            "bailiff-mps",
            "bailiff-proc",
            "bailiff-prometheus",
            "bailiff-size",
            "bailiff-snapshot",
            "bailiff-subprocess",
        ],
    ),
    (
        "bailiff",
        &[
            "bailiff-exposition",
            "bailiff-lease",
            "bailiff-ledger",
            "bailiff-lifecycle",
            "bailiff-mps",
            "bailiff-proc",
            "bailiff-prometheus",
            "bailiff-sampler",
            "bailiff-size",
            "bailiff-snapshot",
            "bailiff-subprocess",
        ],
    ),
];

/// Crates that must not access the outside world, and packages that would give them access.
const PURE: [&str; 3] = ["bailiff-snapshot", "bailiff-engine", "bailiff-size"];
const IMPURE: [&str; 7] = ["tokio", "hyper", "redis", "rustix", "nix", "ureq", "nvml-wrapper"];

/// Returns the packages in the workspace, as reported by `cargo metadata`.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Returns the dependencies of a package, except those that only its tests need.
fn dependencies(package: &Value) -> BTreeSet<&str> {
    let all = package["dependencies"].as_array().unwrap().iter();
    all.filter(|dependency| dependency["kind"].is_null()).map(|one| one["name"].as_str().unwrap()).collect()
}

#[test]
fn crates_depend_only_on_crates_below_them() {
    let packages = packages();
    let names: BTreeSet<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    for (name, expected) in DEPENDENCIES {
        let package = packages.iter().find(|package| package["name"] == name).unwrap();
        let found: Vec<&str> = dependencies(package).intersection(&names).copied().collect();
        assert_eq!(found, expected, "{name}");
    }
    let unlisted =
        |name: &&&str| name.starts_with("bailiff") && !DEPENDENCIES.iter().any(|(listed, _)| listed == *name);
    assert_eq!(names.iter().filter(unlisted).count(), 0, "{names:?}");
}

#[test]
fn pure_crates_cannot_access_the_outside() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        if PURE.contains(&name) {
            let found = dependencies(&package);
            assert!(IMPURE.iter().all(|impure| !found.contains(impure)), "{name}: {found:?}");
            let path = Path::new(package["manifest_path"].as_str().unwrap()).with_file_name("src/lib.rs");
            let forbids = "forbid(clippy::disallowed_methods)";
            assert!(fs::read_to_string(path).unwrap().contains(forbids), "{name} lacks {forbids}");
        }
    }
}

/// The enforcer and the command for users link no client of Kubernetes or the kubelet, not even through other crates.
#[test]
fn only_the_exporter_links_h2() {
    let clients = ["h2", "bailiff-kubernetes", "kube", "k8s-openapi", "tonic", "prost"];
    for (package, expected) in
        [("bailiff-enforcer", &[][..]), ("bailiff", &[]), ("bailiff-exporter", &["h2"])]
    {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--package", package])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let tree = String::from_utf8(output.stdout).unwrap();
        let linked: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        let found: Vec<&str> = clients.into_iter().filter(|client| linked.contains(client)).collect();
        assert_eq!(found, expected, "{package}");
    }
}

/// Returns a crate's modules: the content of each file by module path, such as `info::rows`. The path of the
/// crate's root is "".
fn modules(source: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut directories = vec![source.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_stem().unwrap().to_str().unwrap();
            if path.is_dir() {
                if !["tests", "bin"].contains(&name) {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|end| end == "rs") && name != "tests" {
                let path = path.strip_prefix(source).unwrap().with_extension("");
                let parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap()).collect();
                let parts = match parts.split_last() {
                    Some((&"mod" | &"lib" | &"main", above)) => above.to_vec(),
                    _ => parts.clone(),
                };
                let file = directory.join(format!("{name}.rs"));
                found.insert(parts.join("::"), without_tests(&fs::read_to_string(file).unwrap()));
            }
        }
    }
    found
}

/// Returns the code in a file without comments and unit tests.
fn without_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the paths in the tree of a `use` declaration.
fn expanded(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((before, inner)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()];
    };
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for letter in inner.chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        if letter == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    let inner = parts.iter().filter(|part| !part.trim().is_empty()).flat_map(|part| expanded(part));
    inner.map(|path| format!("{}{path}", before.trim())).collect()
}

/// Returns the trees of all `use` declarations in a file, and whether each is a re-export.
fn uses(code: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with("pub") {
            let tree = code[at + 4..].split(';').next().unwrap_or_default();
            found.extend(expanded(tree).into_iter().map(|path| (line.starts_with("pub"), path)));
        }
    }
    found
}

/// Returns paths such as `super::text::pair` that are not in `use` declarations.
fn inline_paths(code: &str) -> Vec<String> {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let paths = code.split(|letter| !is_path(letter));
    let starts = |path: &&str| ["crate::", "super::", "self::"].iter().any(|start| path.starts_with(start));
    paths.filter(starts).map(str::to_owned).collect()
}

/// Returns the parts of a path from the crate's root, or `None` for a path into another crate.
fn absolute(module: &str, path: &str, modules: &BTreeMap<String, String>) -> Option<Vec<String>> {
    let mut base: Vec<String> =
        module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let mut parts: Vec<&str> =
        path.split("::").map(str::trim).filter(|part| !["", "*"].contains(part)).collect();
    match parts.first().copied()? {
        "crate" => base.clear(),
        "self" | "super" => {}
        first => {
            base.push(first.to_owned());
            let known = modules.contains_key(&base.join("::"));
            base.pop();
            return known.then(|| base.into_iter().chain(parts.into_iter().map(str::to_owned)).collect());
        }
    }
    while let Some(first @ ("crate" | "self" | "super")) = parts.first().copied() {
        if first == "super" {
            base.pop();
        }
        parts.remove(0);
    }
    Some(
        base.into_iter().chain(parts.into_iter().filter(|part| *part != "self").map(str::to_owned)).collect(),
    )
}

/// The re-exports of each module: the path for each name.
type Exports = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// Returns the module that defines the item at a path. Re-exports are followed.
fn defined_in(path: &[String], modules: &BTreeMap<String, String>, exports: &Exports, depth: u32) -> String {
    let known = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length].join("::")));
    let length = known.unwrap_or_default();
    let module = path[..length].join("::");
    let export = path.get(length).and_then(|name| exports.get(&module)?.get(name));
    match export {
        Some(target) if depth < 5 && target != path => {
            let target: Vec<String> = target.iter().chain(&path[length + 1..]).cloned().collect();
            defined_in(&target, modules, exports, depth + 1)
        }
        _ => module,
    }
}

/// Returns the imports between modules in a crate, except imports between a module and its submodules.
fn imports(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let modules = modules(source);
    let mut exports = Exports::new();
    for (module, code) in &modules {
        for (_, path) in uses(code).into_iter().filter(|(public, _)| *public) {
            if let Some(target) = absolute(module, &path, &modules)
                && let Some(name) = target.last().cloned()
            {
                exports.entry(module.clone()).or_default().insert(name, target);
            }
        }
    }
    let is_below = |one: &str, other: &str| other.is_empty() || one.starts_with(&format!("{other}::"));
    let mut imports = BTreeMap::new();
    for (module, code) in &modules {
        let paths = uses(code).into_iter().map(|(_, path)| path).chain(inline_paths(code));
        let targets = paths.filter_map(|path| absolute(module, &path, &modules));
        let targets = targets.map(|path| defined_in(&path, &modules, &exports, 0));
        let others = targets.filter(|other| {
            other != module && !module.is_empty() && !is_below(module, other) && !is_below(other, module)
        });
        imports.insert(module.clone(), others.collect::<BTreeSet<String>>());
    }
    imports
}

/// Returns the modules that import themselves through other modules.
fn in_cycles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<&str> {
    let reaches_itself = |start: &&String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![*start]);
        while let Some(module) = next.pop() {
            for import in imports.get(module).into_iter().flatten() {
                if import == *start {
                    return true;
                }
                if seen.insert(import) {
                    next.push(import);
                }
            }
        }
        false
    };
    imports.keys().filter(reaches_itself).map(String::as_str).collect()
}

#[test]
fn no_module_imports_itself_through_others() {
    for package in packages() {
        let source = Path::new(package["manifest_path"].as_str().unwrap()).with_file_name("src");
        if package["name"].as_str().unwrap().starts_with("bailiff") {
            let imports = imports(&source);
            assert!(!imports.is_empty(), "{}", source.display());
            let cycles = in_cycles(&imports);
            let edges = |module: &&str| format!("{module} imports {:?}", imports[*module]);
            assert!(cycles.is_empty(), "{}", cycles.iter().map(edges).collect::<Vec<_>>().join("\n"));
        }
    }
}

#[test]
fn planted_import_cycle_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("lib.rs", "mod low;\nmod middle;\nmod high;\npub use high::High;\n");
    write("low.rs", "pub struct Low;\n");
    write("middle.rs", "use crate::low::Low;\n");
    write("high.rs", "use crate::{low::{self, Low}, middle};\npub struct High;\n");
    assert_eq!(in_cycles(&imports(directory.path())), Vec::<&str>::new());
    for cycle in
        ["use crate::High;\n", "fn f() -> super::high::High { todo!() }\n", "use super::high::{self};\n"]
    {
        write("low.rs", cycle);
        assert_eq!(in_cycles(&imports(directory.path())), ["high", "low", "middle"], "{cycle}");
    }
    write("middle.rs", "");
    assert_eq!(in_cycles(&imports(directory.path())), ["high", "low"]);
}

/// Returns all Markdown files, except those that are parts of other files.
fn documents() -> Vec<PathBuf> {
    let (mut found, mut directories) = (Vec::new(), vec![root()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && !["target", "reference", "shared"].contains(&name.as_str()) {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 20, "{found:?}");
    found
}

/// Returns the anchor of a heading, as GitHub generates it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        // Every second part is code.
        let prose: String = text.split("```").step_by(2).collect();
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains(':') || link.contains(' ') {
                continue;
            }
            let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            let heads = || fs::read_to_string(&target).unwrap_or_default();
            let has = |text: String| {
                let mut heads = text.lines().filter_map(|line| line.strip_prefix('#'));
                heads.any(|head| anchor(head.trim_start_matches('#')) == fragment)
            };
            if !target.exists() || !fragment.is_empty() && !has(heads()) {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Returns the name and version of each package in a lock file.
fn locked(path: &str) -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(root().join(path)).unwrap();
    let packages = text.split("[[package]]\n").skip(1).map(|package| {
        let value = |key: &str| package.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
        (value("name = "), value("version = "))
    });
    packages.collect()
}

#[test]
fn fuzz_targets_are_built_with_the_versions_of_the_programs() {
    let (programs, fuzz) = (locked("Cargo.lock"), locked("fuzz/Cargo.lock"));
    let is_used = |name: &String| programs.iter().any(|(other, _)| other == name);
    let others: Vec<_> = fuzz.difference(&programs).filter(|(name, _)| is_used(name)).collect();
    assert!(
        !fuzz.is_empty() && others.is_empty(),
        "{others:?}: CONTRIBUTING.md describes how to renew fuzz/Cargo.lock"
    );
}

#[test]
fn overviews_stay_short() {
    for name in ["README.md", "ARCHITECTURE.md"] {
        let lines = fs::read_to_string(root().join(name)).unwrap().lines().count();
        assert!(lines <= 150, "{name} has {lines} lines");
    }
}

#[test]
fn security_page_names_existing_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let table = page.split("## Promises and their tests").nth(1).unwrap().split("\n## ").next().unwrap();
    let named: Vec<(&str, &str)> = table.split('`').filter_map(|code| code.split_once("::")).collect();
    assert!(named.len() > 20, "{named:?}");
    for (module, test) in named {
        let source = fs::read_to_string(root.join(format!("tests/cases/{module}.rs"))).unwrap_or_default();
        assert!(source.contains(&format!("#[test]\nfn {test}() {{")), "{module}::{test}");
    }
}
