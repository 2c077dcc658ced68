//! Command lines that are safe to show: without secrets, and bounded in length.

/// Parts of an argument's name that mark its value as a secret.
const SECRET: [&str; 9] =
    ["password", "passwd", "secret", "token", "api-key", "apikey", "api_key", "credential", "private-key"];

/// Maximum length of a command line, in bytes.
pub const MOST: usize = 256;

/// Joins arguments with spaces and hides the values of those whose name suggests a secret: `--api-key=…`,
/// `--token …`, `HF_TOKEN=…`, and the password in `scheme://user:password@host`.
pub fn command(arguments: &[u8]) -> String {
    let mut line = String::new();
    let mut hide_next = false;
    for argument in arguments.split(|byte| *byte == 0).filter(|argument| !argument.is_empty()) {
        if line.len() >= MOST {
            // Show that the rest is omitted.
            line.push('…');
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        let argument = String::from_utf8_lossy(argument);
        let is_flag = argument.starts_with('-');
        line.push_str(&if hide_next && !is_flag { "…".to_owned() } else { shown(&argument) });
        hide_next = is_flag && !argument.contains('=') && is_secret(&argument);
    }
    cut(line)
}

/// Returns whether the end of the command line may have been cut off.
pub fn is_cut(line: &str) -> bool {
    line.len() >= MOST && line.ends_with('…')
}

fn shown(argument: &str) -> String {
    match argument.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}=…"),
        _ if argument.to_ascii_lowercase().starts_with("authorization:") => "Authorization: …".to_owned(),
        _ => without_password(argument),
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET.iter().any(|word| name.contains(word))
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
        let cases: [(&[u8], &str); 10] = [
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
