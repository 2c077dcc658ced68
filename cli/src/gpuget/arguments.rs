//! Parses a command line as argparse of Python 3.11 does: abbreviated flags, values after `=`, and the order and texts
//! of errors.

use std::collections::BTreeMap;

use crate::output::joined;
use crate::python::{int, repr};

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Flags of an action.
    Action(Arguments),
    /// A request for help.
    Help,
}

/// The given flags by their full name, with their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Arguments(BTreeMap<&'static str, String>);

impl Arguments {
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the value of a flag, if it was given.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// A classified command-line argument.
enum Token<'a> {
    /// A value of a flag, or a stray value.
    Value(&'a str),
    /// `--`; all following arguments are values.
    Dashes,
    /// A flag, its spelling, and the value after `=`.
    Flag(&'static Flag, &'a str, Option<&'a str>),
    /// An unknown flag.
    Unknown(&'a str),
}

/// Parses a command line.
///
/// # Errors
/// With the error message of argparse.
pub(super) fn parse(args: &[String]) -> Result<Parsed, String> {
    // GPUGET's README contains this misspelling.
    let args: Vec<&str> =
        args.iter().map(|arg| if arg == "---redis-purge" { "--redis-purge" } else { arg }).collect();
    let tokens = classify(&args)?;
    let mut given = Arguments::default();
    let mut extra = Vec::new();
    let mut left = tokens.iter().peekable();
    while let Some(token) = left.next() {
        let (flag, spelling, value) = match token {
            Token::Value(text) | Token::Unknown(text) => {
                extra.push(*text);
                continue;
            }
            Token::Dashes => {
                extra.push("--");
                continue;
            }
            Token::Flag(flag, spelling, value) => (*flag, *spelling, *value),
        };
        let next = || match left.next_if(|next| matches!(next, Token::Value(_))) {
            Some(Token::Value(value)) => Some(*value),
            _ => None,
        };
        let value = value_of(flag, spelling, value, next).and_then(|value| match conflicting(flag, &given) {
            Some(other) => Err(format!("not allowed with argument {other}")),
            None => Ok(value),
        });
        let value = value.map_err(|why| format!("argument {}: {why}", flag.title()))?;
        if flag.name == "--help" {
            return Ok(Parsed::Help);
        }
        given.0.insert(flag.name, value);
    }
    if extra.is_empty() {
        Ok(Parsed::Action(given))
    } else {
        Err(format!("unrecognized arguments: {}", extra.join(" ")))
    }
}

/// Returns the value of a flag: the text after `=`, or the next argument.
fn value_of<'a>(
    flag: &Flag,
    spelling: &str,
    value: Option<&'a str>,
    next: impl FnOnce() -> Option<&'a str>,
) -> Result<String, String> {
    if flag.takes == Takes::Nothing {
        return value.map_or(Ok(()), |value| check_joined_flags(spelling, value)).map(|()| String::new());
    }
    let value = value.or_else(next).ok_or("expected one argument")?;
    match flag.takes {
        Takes::Int => int(value).ok_or_else(|| format!("invalid int value: {}", repr(value))),
        Takes::Text | Takes::Nothing => Ok(value.to_owned()),
    }
}

fn classify<'a>(args: &[&'a str]) -> Result<Vec<Token<'a>>, String> {
    let mut values_only = false;
    let mut classified = Vec::new();
    for arg in args {
        classified.push(match *arg {
            arg if values_only => Token::Value(arg),
            "--" => {
                values_only = true;
                Token::Dashes
            }
            arg => classify_one(arg)?,
        });
    }
    Ok(classified)
}

fn classify_one(arg: &str) -> Result<Token<'_>, String> {
    if !arg.starts_with('-') || arg == "-" {
        return Ok(Token::Value(arg));
    }
    if let Some(flag) = find_flag(arg) {
        return Ok(Token::Flag(flag, arg, None));
    }
    let (name, value) = arg.split_once('=').map_or((arg, None), |(name, value)| (name, Some(value)));
    if let (Some(flag), Some(_)) = (find_flag(name), value) {
        return Ok(Token::Flag(flag, name, value));
    }
    match candidates(arg, name, value).as_slice() {
        [(flag, value)] => {
            return Ok(Token::Flag(flag, if arg.starts_with("--") { flag.name } else { "-h" }, *value));
        }
        [] => {}
        several => {
            let names = joined(several.iter().map(|(flag, _)| flag.name), ", ");
            return Err(format!("ambiguous option: {arg} could match {names}"));
        }
    }
    Ok(if is_number(arg) || arg.contains(' ') { Token::Value(arg) } else { Token::Unknown(arg) })
}

fn find_flag(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name || name == "-h" && flag.name == "--help")
}

/// Returns the flags that this may abbreviate.
fn candidates<'a>(arg: &'a str, name: &str, value: Option<&'a str>) -> Vec<(&'static Flag, Option<&'a str>)> {
    if arg.starts_with("--") {
        return FLAGS.iter().filter(|flag| flag.name.starts_with(name)).map(|flag| (flag, value)).collect();
    }
    // `-hx`: a one-letter flag with joined text.
    let joined = arg.strip_prefix("-h");
    joined.and_then(|joined| Some((find_flag("-h")?, Some(joined)))).into_iter().collect()
}

/// Checks the text joined to a flag without a value: it may only be more one-letter flags, and `-h` is the only one.
fn check_joined_flags(spelling: &str, value: &str) -> Result<(), String> {
    let rest = value.trim_start_matches('h');
    if spelling == "-h" && rest.is_empty() && !value.is_empty() {
        return Ok(());
    }
    Err(format!("ignored explicit argument {}", repr(if spelling == "-h" { rest } else { value })))
}

/// Whether an argument is a negative number (`-5`, `-.5`), which is a value because no flag looks like one.
fn is_number(arg: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(number) = arg.strip_prefix('-') else { return false };
    match number.split_once('.') {
        Some((whole, part)) => digits(whole) && digits(part) && !part.is_empty(),
        None => digits(number) && !number.is_empty(),
    }
}

fn conflicting(flag: &Flag, given: &Arguments) -> Option<&'static str> {
    let others = FLAGS.iter().filter(|other| flag.exclusive && other.exclusive && other.name != flag.name);
    others.map(|other| other.name).find(|other| given.has(other))
}

/// The value that a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Text,
    Int,
}

/// A flag.
#[derive(Debug)]
struct Flag {
    name: &'static str,
    takes: Takes,
    /// At most one of the exclusive flags may be given.
    exclusive: bool,
}

impl Flag {
    const fn new(name: &'static str, takes: Takes) -> Self {
        Self { name, takes, exclusive: false }
    }

    const fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }

    /// Returns its name in argparse's errors.
    fn title(&self) -> &'static str {
        if self.name == "--help" { "-h/--help" } else { self.name }
    }
}

/// The flags of GPU.py in the original order, as in `help.txt`.
const FLAGS: [Flag; 20] = [
    Flag::new("--help", Takes::Nothing),
    Flag::new("--gpu-count", Takes::Nothing),
    Flag::new("--managed-gpu-count", Takes::Nothing),
    Flag::new("--redis-server", Takes::Text),
    Flag::new("--redis-port", Takes::Int),
    Flag::new("--redis-db", Takes::Int),
    Flag::new("--redis-prefix", Takes::Text),
    Flag::new("--redis-manage-all", Takes::Nothing).exclusive(),
    Flag::new("--redis-manage", Takes::Text).exclusive(),
    Flag::new("--redis-manage-count", Takes::Int).exclusive(),
    Flag::new("--force", Takes::Nothing),
    Flag::new("--get", Takes::Nothing),
    Flag::new("--release", Takes::Int),
    Flag::new("--log", Takes::Nothing),
    Flag::new("--info", Takes::Nothing),
    Flag::new("--idle", Takes::Nothing),
    Flag::new("--managed", Takes::Nothing),
    Flag::new("--active", Takes::Nothing),
    Flag::new("--redis-delete", Takes::Nothing),
    Flag::new("--redis-purge", Takes::Nothing),
];

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::HELP;
    use super::*;
    use crate::python::usage;

    /// Generated with Python's argparse by `generate.py` in the same directory.
    const GOLDEN: &str = include_str!("../../../tests/golden/gpuget/argparse.json");

    #[test]
    fn arguments_are_parsed_as_by_argparse() {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        assert!(golden["python"].as_str().unwrap().starts_with("3.11."));
        let cases = golden["cases"].as_array().unwrap();
        assert!(cases.len() > 400);
        for case in cases {
            let args: Vec<String> = serde_json::from_value(case["words"].clone()).unwrap();
            match parse(&args) {
                Ok(Parsed::Action(Arguments(given))) => {
                    let given: BTreeMap<String, String> =
                        given.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                    assert_eq!(serde_json::to_value(given).unwrap(), case["given"], "{case}");
                }
                Ok(Parsed::Help) => {
                    assert!(case["code"] == 0 && case["given"].is_null(), "{case}");
                }
                Err(why) => {
                    assert_eq!((&case["code"], &case["error"]), (&2.into(), &why.as_str().into()), "{case}");
                }
            }
        }
    }

    #[test]
    fn usage_and_help_match_argparse() {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        assert_eq!(format!("{}\n", usage(HELP)), golden["usage"].as_str().unwrap());
        assert_eq!(HELP, golden["help"].as_str().unwrap());
        let names = HELP.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
        let names: Vec<&str> = names.filter(|name| name.starts_with('-')).collect();
        let flags: Vec<&str> = FLAGS.iter().map(|flag| flag.title().split('/').next().unwrap()).collect();
        assert_eq!(names.iter().map(|name| name.trim_end_matches(',')).collect::<Vec<_>>(), flags);
    }

    #[test]
    fn misspelled_flag_of_original_readme_is_accepted() {
        let Ok(Parsed::Action(arguments)) = parse(&["---redis-purge".to_owned()]) else {
            panic!("the flag is refused")
        };
        assert!(arguments.has("--redis-purge"));
    }
}
