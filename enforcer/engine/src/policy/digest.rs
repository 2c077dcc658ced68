//! Names a condition by what it means: neither the order of keys, nor names of conditions, nor comments, nor
//! how a number is written change it, so that a reload keeps the windows of rules that mean the same.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::{Condition, Pick, Span};
use crate::Kind;
use crate::value::{Bounds, Test};

/// SHA-256 of some bytes, hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The name of what a rule waits for.
pub(super) fn condition(of: Kind, when: &Condition, pick: Option<&Pick>) -> String {
    let mut text = format!("of {}\nwhen {}\n", of.name(), canonical(when));
    if let Some(Pick { from, idle_for, order }) = pick {
        let order: Vec<&str> = order.iter().map(|order| order.name()).collect();
        let idle_for = match idle_for {
            Span::Samples(samples) => format!("{samples} samples"),
            Span::Time(time) => format!("{}ns", time.as_nanos()),
        };
        let _ = writeln!(text, "pick {} idle {idle_for} by {}", canonical(from), order.join(" "));
    }
    sha256(text.as_bytes())
}

/// A text that is the same for all conditions that differ only in how they are written.
fn canonical(condition: &Condition) -> String {
    match condition {
        Condition::Leaf(leaf) => format!("{}({})", leaf.attribute.name, test(leaf.test)),
        Condition::Select(selector) => {
            let texts =
                selector.patterns.iter().map(|pattern| format!("{:?}", pattern.to_string())).collect();
            format!("{}[{}]", selector.field.name(), sorted(texts))
        }
        Condition::All(_) => joined("all", condition, |condition| match condition {
            Condition::All(conditions) => Some(conditions),
            _ => None,
        }),
        Condition::Any(_) => joined("any", condition, |condition| match condition {
            Condition::Any(conditions) => Some(conditions),
            _ => None,
        }),
        Condition::Not(condition) => format!("not({})", canonical(condition)),
    }
}

fn test(test: Test) -> String {
    match test {
        Test::Within(Bounds { max, below, min, above }) => format!("{max:?} {below:?} {min:?} {above:?}"),
        Test::Is(flag) => flag.to_string(),
        Test::AnyOf(words) => format!("{words:b}"),
    }
}

/// An AND within an AND is one AND; so with OR.
fn joined(word: &str, condition: &Condition, inner: fn(&Condition) -> Option<&Vec<Condition>>) -> String {
    fn flat(
        condition: &Condition,
        inner: fn(&Condition) -> Option<&Vec<Condition>>,
        parts: &mut Vec<String>,
    ) {
        match inner(condition) {
            Some(conditions) => conditions.iter().for_each(|condition| flat(condition, inner, parts)),
            None => parts.push(canonical(condition)),
        }
    }
    let mut parts = Vec::new();
    flat(condition, inner, &mut parts);
    parts.sort_unstable();
    parts.dedup();
    match parts.as_slice() {
        [only] => only.clone(),
        _ => format!("{word}({})", parts.join(", ")),
    }
}

fn sorted(mut texts: Vec<String>) -> String {
    texts.sort_unstable();
    texts.dedup();
    texts.join(", ")
}
