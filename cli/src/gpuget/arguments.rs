//! A command line, understood as Python's argparse understands it: prefixes of names, values after `=`, the order of
//! errors, and their words. Its version is that of Python 3.11.

use std::collections::BTreeMap;

use super::flags::{FLAGS, Flag, Takes};
use super::python::{int, repr};

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// An action.
    Action(Arguments),
    /// The help.
    Help,
}

/// Flags that were given, by their whole name, with their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Arguments(BTreeMap<&'static str, String>);

impl Arguments {
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Nothing where it was not given.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// What a word is taken for.
enum Word<'a> {
    /// A value, or nobody's.
    Value(&'a str),
    /// `--`, after which all are values.
    Dashes,
    /// A flag as it was written, and what followed `=`.
    Flag(&'static Flag, &'a str, Option<&'a str>),
    /// It looks like a flag.
    Unknown(&'a str),
}

/// Understands a command line.
///
/// # Errors
/// With argparse's words.
pub(super) fn parse(words: &[String]) -> Result<Asked, String> {
    // As GPUGET's own README has it.
    let words: Vec<&str> =
        words.iter().map(|word| if word == "---redis-purge" { "--redis-purge" } else { word }).collect();
    let words = classify(&words)?;
    let mut given = Arguments::default();
    let mut extra = Vec::new();
    let mut left = words.iter().peekable();
    while let Some(word) = left.next() {
        let (flag, written, value) = match word {
            Word::Value(word) | Word::Unknown(word) => {
                extra.push(*word);
                continue;
            }
            Word::Dashes => {
                extra.push("--");
                continue;
            }
            Word::Flag(flag, written, value) => (*flag, *written, *value),
        };
        let next = || match left.next_if(|next| matches!(next, Word::Value(_))) {
            Some(Word::Value(value)) => Some(*value),
            _ => None,
        };
        let value = value_of(flag, written, value, next).and_then(|value| match other_of(flag, &given) {
            Some(other) => Err(format!("not allowed with argument {other}")),
            None => Ok(value),
        });
        let value = value.map_err(|why| format!("argument {}: {why}", flag.title()))?;
        if flag.name == "--help" {
            return Ok(Asked::Help);
        }
        given.0.insert(flag.name, value);
    }
    if extra.is_empty() {
        Ok(Asked::Action(given))
    } else {
        Err(format!("unrecognized arguments: {}", extra.join(" ")))
    }
}

/// The value of a flag: what follows `=`, or the next word.
fn value_of<'a>(
    flag: &Flag,
    written: &str,
    value: Option<&'a str>,
    next: impl FnOnce() -> Option<&'a str>,
) -> Result<String, String> {
    if flag.takes == Takes::Nothing {
        return value.map_or(Ok(()), |value| joined(written, value)).map(|()| String::new());
    }
    let value = value.or_else(next).ok_or("expected one argument")?;
    match flag.takes {
        Takes::Int => int(value).ok_or_else(|| format!("invalid int value: {}", repr(value))),
        Takes::Text | Takes::Nothing => Ok(value.to_owned()),
    }
}

fn classify<'a>(words: &[&'a str]) -> Result<Vec<Word<'a>>, String> {
    let mut values_only = false;
    let mut classified = Vec::new();
    for word in words {
        classified.push(match *word {
            word if values_only => Word::Value(word),
            "--" => {
                values_only = true;
                Word::Dashes
            }
            word => one(word)?,
        });
    }
    Ok(classified)
}

fn one(word: &str) -> Result<Word<'_>, String> {
    if !word.starts_with('-') || word == "-" {
        return Ok(Word::Value(word));
    }
    if let Some(flag) = named(word) {
        return Ok(Word::Flag(flag, word, None));
    }
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    if let (Some(flag), Some(_)) = (named(name), value) {
        return Ok(Word::Flag(flag, name, value));
    }
    match meant(word, name, value).as_slice() {
        [(flag, value)] => {
            return Ok(Word::Flag(flag, if word.starts_with("--") { flag.name } else { "-h" }, *value));
        }
        [] => {}
        several => {
            let names: Vec<&str> = several.iter().map(|(flag, _)| flag.name).collect();
            return Err(format!("ambiguous option: {word} could match {}", names.join(", ")));
        }
    }
    Ok(if is_number(word) || word.contains(' ') { Word::Value(word) } else { Word::Unknown(word) })
}

fn named(word: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == word || word == "-h" && flag.name == "--help")
}

/// The flags of which this may be a beginning.
fn meant<'a>(word: &'a str, name: &str, value: Option<&'a str>) -> Vec<(&'static Flag, Option<&'a str>)> {
    if word.starts_with("--") {
        return FLAGS.iter().filter(|flag| flag.name.starts_with(name)).map(|flag| (flag, value)).collect();
    }
    // `-hx`: a flag of one letter, with something behind it.
    let behind = word.strip_prefix("-h");
    behind.and_then(|behind| Some((named("-h")?, Some(behind)))).into_iter().collect()
}

/// What stands behind a flag that takes no value: more flags of one letter, of which there is but one.
fn joined(written: &str, value: &str) -> Result<(), String> {
    let rest = value.trim_start_matches('h');
    if written == "-h" && rest.is_empty() && !value.is_empty() {
        return Ok(());
    }
    Err(format!("ignored explicit argument {}", repr(if written == "-h" { rest } else { value })))
}

/// `-5` or `-.5`: there is no flag of that kind, so it is a value.
fn is_number(word: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(number) = word.strip_prefix('-') else { return false };
    match number.split_once('.') {
        Some((whole, part)) => digits(whole) && digits(part) && !part.is_empty(),
        None => digits(number) && !number.is_empty(),
    }
}

fn other_of(flag: &Flag, given: &Arguments) -> Option<&'static str> {
    let others = FLAGS.iter().filter(|other| flag.alone && other.alone && other.name != flag.name);
    others.map(|other| other.name).find(|other| given.has(other))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::usage;
    use super::*;

    /// Made by `generate.py` beside it, with Python's own argparse.
    const GOLDEN: &str = include_str!("../../../tests/golden/gpuget/argparse.json");

    #[test]
    fn as_argparse_understands_it() {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        assert!(golden["python"].as_str().unwrap().starts_with("3.11."));
        let cases = golden["cases"].as_array().unwrap();
        assert!(cases.len() > 400);
        for case in cases {
            let words: Vec<String> = serde_json::from_value(case["words"].clone()).unwrap();
            match parse(&words) {
                Ok(Asked::Action(Arguments(given))) => {
                    let given: BTreeMap<String, String> =
                        given.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                    assert_eq!(serde_json::to_value(given).unwrap(), case["given"], "{case}");
                }
                Ok(Asked::Help) => {
                    assert!(case["code"] == 0 && case["given"].is_null(), "{case}");
                }
                Err(why) => {
                    assert_eq!((&case["code"], &case["error"]), (&2.into(), &why.as_str().into()), "{case}");
                }
            }
        }
    }

    #[test]
    fn usage_and_help_as_argparse_lays_them_out() {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        assert_eq!(usage::usage("GPU.py"), golden["usage"].as_str().unwrap());
        assert_eq!(usage::help("GPU.py"), golden["help"].as_str().unwrap());
    }

    #[test]
    fn a_slip_of_the_originals_readme_is_understood() {
        let Ok(Asked::Action(arguments)) = parse(&["---redis-purge".to_owned()]) else {
            panic!("it is not taken")
        };
        assert!(arguments.has("--redis-purge"));
    }
}
