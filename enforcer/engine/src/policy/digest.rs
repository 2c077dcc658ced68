//! Identifies a condition by its meaning: the order of keys, names of conditions, comments and the notation of
//! numbers do not matter, so that a reload keeps the streaks of rules with the same meaning.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::{Condition, Pick, Span};
use crate::Kind;
use crate::value::{Bounds, Test};

/// Returns the SHA-256 of bytes in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the identity of a rule's condition.
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

/// Returns the same text for all conditions that differ only in notation.
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

/// Flattens an AND within an AND, and an OR within an OR.
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
