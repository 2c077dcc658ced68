//! Tests `bailiff completions`: each shell offers what `--help` shows, and completing does not run the
//! command.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test runs programs and fails loudly"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use end_to_end::leases::stdout_of;
use end_to_end::programs;
use tempfile::TempDir;

/// For each shell: its name, its completion file, and a script that prints what the shell offers for
/// each line in `$HOME/asked`.
const SHELLS: [(&str, &str, &str); 3] = [
    ("bash", "completions.bash", BASH),
    ("zsh", "_bailiff", ZSH),
    ("fish", ".config/fish/completions/bailiff.fish", FISH),
];

const BASH: &str = r#"
. "$HOME/completions.bash"
while IFS= read -r asked; do
    read -ra COMP_WORDS <<< "$asked"
    [[ $asked != *' ' ]] || COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _bailiff bailiff "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
    for offered in "${COMPREPLY[@]}"; do printf '%s\t%s\n' "$asked" "$offered"; done
done < "$HOME/asked"
"#;

const FISH: &str = r"
for asked in (cat $HOME/asked)
    for offered in (complete -C $asked)
        printf '%s\t%s\n' $asked (string split -f 1 \t -- $offered)
    end
end
";

/// zsh completes only in its line editor, so a zsh runs in its own terminal (zpty) with `.zshrc`.
const ZSH: &str = r"
zmodload zsh/zpty
zpty editor zsh -i
while zpty -r editor shown; do :; done
cat $HOME/offered
";

const ZSHRC: &str = r#"
fpath=($HOME $fpath)
autoload -Uz compinit; compinit -u -D
compadd() {
    # With these flags it only says which words match.
    if [[ " ${@[1,(i)(-|--)]}" == *\ -(O|A|D)* ]]; then builtin compadd "$@"; return; fi
    local -a matching; builtin compadd -O matching "$@"
    for offered in $matching; do print -r -- "$asked"$'\t'"$offered" >> $HOME/offered; done
    builtin compadd "$@"
}
zle-line-init() {
    for asked in ${(f)"$(<$HOME/asked)"}; do BUFFER=$asked; CURSOR=$#BUFFER; zle list-choices; done
    BUFFER=exit; zle accept-line
}
zle -N zle-line-init
"#;

/// A home directory whose `bailiff` command only records that it was run.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = home.path();
        for (shell, file, _) in SHELLS {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, stdout_of(&completions(shell))).unwrap();
        }
        fs::write(path.join(".zshrc"), ZSHRC).unwrap();
        fs::create_dir_all(path.join("bin")).unwrap();
        fs::create_dir_all(path.join("empty")).unwrap();
        let program = path.join("bin/bailiff");
        fs::write(&program, "#!/bin/sh\necho \"$0 $*\" >> \"$HOME/run\"\n").unwrap();
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        Self(home)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs a script in this shell with this home directory, in a directory without files.
    fn shell(&self, shell: &str, words: &[&str]) -> Output {
        let mut command = Command::new(shell);
        let usual = std::env::var("PATH").unwrap();
        command.env_clear().current_dir(self.path().join("empty")).args(words);
        command.env("HOME", self.path()).env("ZDOTDIR", self.path()).env("TERM", "dumb");
        command.env("PATH", format!("{}:{usual}", self.path().join("bin").display()));
        let output = command.output();
        output.unwrap_or_else(|error| panic!("{shell}: {error}; run `tests/setup shells`"))
    }

    /// Returns the words that a shell offers for each of these partial lines.
    fn offered(&self, (shell, _, script): (&str, &str, &str), lines: &[&str]) -> Offered {
        fs::write(self.path().join("asked"), lines.join("\n") + "\n").unwrap();
        let output = self.shell(shell, &["-c", script]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{shell}");
        let mut offered: Offered = lines.iter().map(|line| ((*line).to_owned(), BTreeSet::new())).collect();
        for (line, word) in stdout_of(&output).lines().map(|row| row.split_once('\t').unwrap()) {
            offered.get_mut(line).unwrap().insert(word.to_owned());
        }
        offered
    }
}

type Offered = BTreeMap<String, BTreeSet<String>>;

fn completions(shell: &str) -> Output {
    Command::new(programs::bailiff()).args(["completions", shell]).output().unwrap()
}

/// Returns the commands and long flags that a command's `--help` shows.
fn help(path: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let words = path.split(' ').skip(1).chain(["--help"]);
    let help = stdout_of(&Command::new(programs::bailiff()).args(words).output().unwrap());
    let listed = help.split("\nCommands:\n").nth(1).map_or("", |rest| rest.split("\n\n").next().unwrap());
    let commands = listed.lines().map(|line| line.split_whitespace().next().unwrap().to_owned());
    let rows = help.lines().map(str::trim_start).filter(|row| row.starts_with('-') && !row.starts_with("- "));
    let flags = rows.flat_map(|row| row.split("  ").next().unwrap().split([' ', ',', '=']));
    (commands.collect(), flags.filter(|word| word.starts_with("--")).map(str::to_owned).collect())
}

/// Returns a command path and all paths below it. The flags of gpuget are those of GPU.py, and our
/// `--help` does not list them.
fn paths(path: &str) -> Vec<String> {
    let (commands, _) = help(path);
    let below = commands.iter().filter(|command| !["help", "gpuget"].contains(&command.as_str()));
    let below = below.flat_map(|command| paths(&format!("{path} {command}")));
    std::iter::once(path.to_owned()).chain(below).collect()
}

#[test]
fn completion_script_parses_in_its_shell() {
    let home = Home::new();
    for (shell, file, _) in SHELLS {
        let path = home.path().join(file);
        let check = if shell == "fish" { "--no-execute" } else { "-n" };
        stdout_of(&home.shell(shell, &[check, path.to_str().unwrap()]));
    }
    assert_eq!(completions("tcsh").status.code(), Some(64));
}

#[test]
fn completion_offers_exactly_what_help_shows() {
    let home = Home::new();
    let paths = paths("bailiff");
    assert!(paths.len() > 20, "{paths:?}");
    let lines: Vec<String> =
        paths.iter().flat_map(|path| [format!("{path} --"), format!("{path} ")]).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    for shell in SHELLS {
        let offered = home.offered(shell, &lines);
        for path in &paths {
            let (commands, flags) = help(path);
            assert_eq!(offered[&format!("{path} --")], flags, "{}: {path} --", shell.0);
            if !commands.is_empty() {
                let words = offered[&format!("{path} ")].iter().filter(|word| !word.starts_with('-'));
                assert_eq!(words.cloned().collect::<BTreeSet<_>>(), commands, "{}: {path}", shell.0);
            }
        }
    }
}

#[test]
fn completion_runs_no_command() {
    let home = Home::new();
    for shell in SHELLS {
        let expected = [
            ("bailiff le", "lease"),
            ("bailiff lease re", "reap release"),
            ("bailiff run --vr", "--vram"),
            ("bailiff lease acquire --format ", "env ids json uuid"),
            ("bailiff lease run --on-lost t", "term"),
            // clap_complete does not offer the values of positional arguments in fish.
            ("bailiff completions z", if shell.0 == "fish" { "" } else { "zsh" }),
            ("bailiff help lease ho", ""),
        ];
        let offered = home.offered(shell, &expected.map(|(line, _)| line));
        assert!(!home.path().join("run").exists(), "{}: completing ran a command", shell.0);
        for (line, words) in expected {
            let expected = words.split_whitespace().map(str::to_owned).collect();
            assert_eq!(offered[line], expected, "{}: {line}", shell.0);
        }
    }
}
