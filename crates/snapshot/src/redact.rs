//! Command lines that are safe to show: without secrets, and bounded in length.

/// Parts of an argument's name that mark its value as a secret.
const SECRET: [&str; 11] = [
    "passw",
    "passphrase",
    "-pwd",
    "_pwd",
    "secret",
    "token",
    "api-key",
    "apikey",
    "api_key",
    "credential",
    "private-key",
];

/// Last words of names that mark a value as a secret. At other places they mean other things, as in
/// `--key-frames`.
const SECRET_ENDS: [&str; 4] = ["pass", "sshpass", "key", "auth"];

/// Programs whose option `-pSECRET` is a password. Others use `-p` for ports and paths.
const SHORT_PASSWORD: [&str; 8] =
    ["mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlshow", "mariadb", "mariadb-dump", "sshpass"];

/// Texts after which the rest of an argument is a secret.
const BEFORE_SECRET: [(&str, &str); 2] = [("authorization:", "Authorization:"), ("bearer ", "Bearer")];

/// Maximum length of a command line, in bytes.
pub const MOST: usize = 256;

/// Joins arguments with spaces and hides the values of those whose name suggests a secret: `--api-key=…`,
/// `--token …`, `HF_TOKEN=…`, `Authorization: …`, `Bearer …`, `-p…` of mysql, and the password in
/// `scheme://user:password@host`.
pub fn command(arguments: &[u8]) -> String {
    let mut line = String::new();
    let mut hiding = Hiding::default();
    for argument in arguments.split(|byte| *byte == 0).filter(|argument| !argument.is_empty()) {
        if line.len() >= MOST {
            // Show that the rest is omitted.
            line.push('…');
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&hiding.next(&String::from_utf8_lossy(argument)));
    }
    cut(line)
}

/// What the arguments so far say about the next one.
#[derive(Default)]
struct Hiding {
    next: bool,
    /// The program whose option `-pSECRET` is a password.
    program: Option<&'static str>,
}

impl Hiding {
    /// Returns an argument as it is shown.
    fn next(&mut self, argument: &str) -> String {
        let is_flag = argument.starts_with('-');
        let hidden = self.next && !is_flag;
        let short = self.program.is_some() && argument.starts_with("-p");
        self.next = is_flag && !argument.contains('=') && is_secret(argument)
            || argument.eq_ignore_ascii_case("bearer")
            // Only sshpass takes the password from the next argument; others prompt for it.
            || argument == "-p" && self.program == Some("sshpass");
        let file_name = argument.rsplit('/').next().unwrap_or_default();
        self.program = SHORT_PASSWORD.into_iter().find(|name| *name == file_name).or(self.program);
        match argument {
            _ if hidden => "…".to_owned(),
            _ if short && argument.len() > 2 => "-p…".to_owned(),
            _ => shown(argument),
        }
    }
}

/// Returns whether the end of the command line may have been cut off.
pub fn is_cut(line: &str) -> bool {
    line.len() >= MOST && line.ends_with('…')
}

fn shown(argument: &str) -> String {
    let named = argument.find(['=', ':']).and_then(|at| argument.split_at_checked(at + 1));
    if let Some((name, _)) = named.filter(|(name, _)| is_secret(&name[..name.len() - 1])) {
        return format!("{name}…");
    }
    let lower = argument.to_ascii_lowercase();
    for (text, name) in BEFORE_SECRET {
        if let Some((before, _)) = lower.find(text).and_then(|at| argument.split_at_checked(at)) {
            return format!("{before}{name} …");
        }
    }
    without_password(argument)
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let last = name.rsplit(['-', '_', '.']).next().unwrap_or_default();
    SECRET.iter().any(|word| name.contains(word)) || SECRET_ENDS.contains(&last)
}

/// Hides the password in a URL. Passwords may contain slashes, so all text up to the last `@` is hidden, even if
/// a part of it is a path.
fn without_password(argument: &str) -> String {
    let hidden = argument.split_once("://").and_then(|(scheme, rest)| {
        let (user, host) = rest.rsplit_once('@')?;
        let (user, _) = user.split_once(':')?;
        Some(format!("{scheme}://{user}:…@{host}"))
    });
    hidden.unwrap_or_else(|| argument.to_owned())
}

fn cut(mut line: String) -> String {
    if line.len() > MOST {
        let end = (0..=MOST).rev().find(|end| line.is_char_boundary(*end)).unwrap_or_default();
        line.truncate(end);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn secrets_are_hidden_and_the_rest_is_not() {
        let cases: [(&[u8], &str); 32] = [
            (b"python\0train.py\0--lr\x000.1\0", "python train.py --lr 0.1"),
            (b"x\0--api-key=abc\0y", "x --api-key=… y"),
            (b"x\0--token\0abc\0y", "x --token … y"),
            (b"x\0--token\0--verbose", "x --token --verbose"),
            (
                b"env\0HF_TOKEN=hf_1\0AWS_SECRET_ACCESS_KEY=k\0run",
                "env HF_TOKEN=… AWS_SECRET_ACCESS_KEY=… run",
            ),
            (b"x\0redis://bob:hunter2@host/0", "x redis://bob:…@host/0"),
            (b"x\0http://host/a@b:c", "x http://host/a@b:c"),
            (b"x\0redis://bob:hun/ter2@host", "x redis://bob:…@host"),
            (b"curl\0-H\0authorization: Bearer abc", "curl -H Authorization: …"),
            (b"x\0--pass=abc\0--bypass=no", "x --pass=… --bypass=no"),
            (b"x\0--pass\0abc\0y", "x --pass … y"),
            (b"x\0--password\0abc", "x --password …"),
            (b"x\0--db.passwd\0abc", "x --db.passwd …"),
            (b"x\0--wandb-key\0abc\0--epochs\x003", "x --wandb-key … --epochs 3"),
            (b"x\0--key-frames=3\0--monkey=1", "x --key-frames=3 --monkey=1"),
            (b"SSHPASS=abc\0MYSQL_PWD=abc\0PWD=/home", "SSHPASS=… MYSQL_PWD=… PWD=/home"),
            (b"/usr/bin/mysql\0-uroot\0-pabc\0db", "/usr/bin/mysql -uroot -p… db"),
            (b"sudo\0mysqldump\0-pabc", "sudo mysqldump -p…"),
            (b"mysql\0-p\0db", "mysql -p db"),
            (b"sshpass\0-p\0abc\0ssh\0host", "sshpass -p … ssh host"),
            (b"ssh\0-p22\0host", "ssh -p22 host"),
            (b"python\0-pmysql", "python -pmysql"),
            (b"x\0Bearer abc", "x Bearer …"),
            (b"x\0bearer\0abc\0y", "x bearer … y"),
            (b"x\0--header=X: Bearer abc", "x --header=X: Bearer …"),
            (b"x\0--header=Authorization: Basic abc", "x --header=Authorization: …"),
            (b"curl\0-HProxy-Authorization: abc", "curl -HProxy-Authorization: …"),
            (b"curl\0-H\0X-Api-Key: abc", "curl -H X-Api-Key:…"),
            (b"curl\0-d\0{\"password\": \"abc\"}", "curl -d {\"password\":…"),
            (b"x\0--passphrase\0abc", "x --passphrase …"),
            (b"x\0--proxy-auth=me:abc", "x --proxy-auth=…"),
            (b"", ""),
        ];
        for (arguments, expected) in cases {
            assert_eq!(command(arguments), expected);
        }
    }

    proptest! {
        #[test]
        fn bounded_and_calm(arguments: Vec<u8>) {
            prop_assert!(command(&arguments).len() <= MOST + '…'.len_utf8());
        }
    }

    #[test]
    fn a_long_line_is_cut_at_a_character() {
        for (long, cut) in [
            ("é".repeat(10_000), true),
            ("a".repeat(MOST), false),
            (format!("{}\0b", "a".repeat(MOST)), true),
            (format!("{}\0b", "a".repeat(MOST - 3)), false),
            (format!("{}🦀x", "a".repeat(MOST - 3)), true),
        ] {
            let line = command(long.as_bytes());
            assert!(line.len() <= MOST + '…'.len_utf8());
            assert_eq!(is_cut(&line), cut, "{line}");
        }
    }
}
