//! Parses conditions: `when`, `select`, `except`, `from` and named conditions have one grammar. The keys of a
//! map are combined by AND. A named condition is parsed once, and checked against the kind of target at each
//! use.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Condition, Field, Leaf, Selector, comparisons, keys, pattern, selectors};
use crate::Kind;
use crate::attributes::{self, Attribute};
use crate::yaml::{
    self, DEEPEST, Data, Entry, Fault, Faults, Node, expected, many, nothing_given, quoted, unknown,
};

/// Maximum nesting, including that of named conditions.
const DEEPEST_CONDITION: usize = 2 * DEEPEST;

/// Maximum number of comparisons and patterns that `use` may copy within a file.
const COPIES: usize = 20_000;

/// Maximum length of a pattern.
const LONGEST_PATTERN: usize = 1024;

/// Maximum number of globs and regular expressions in a file: each takes time and memory to compile.
const PATTERNS: usize = 200;

/// Parser of the conditions of one file.
pub(super) struct ConditionParser<'a> {
    /// Errors so far.
    pub(super) faults: Faults,
    conditions: BTreeMap<&'a str, NamedCondition<'a>>,
    reading: Vec<&'a str>,
    deep: usize,
    copies: usize,
    patterns: usize,
}

struct NamedCondition<'a> {
    written: &'a Entry,
    read: Read,
    used: bool,
}

enum Read {
    /// Not parsed yet.
    No,
    /// Invalid; its errors were reported.
    Broken,
    /// Parsed.
    As(Condition),
}

impl<'a> ConditionParser<'a> {
    /// Creates a parser with the file's named conditions.
    pub(super) fn new(faults: Faults, conditions: &'a [Entry]) -> Self {
        let named = |written: &'a Entry| {
            (written.name.as_str(), NamedCondition { written, read: Read::No, used: false })
        };
        let conditions = conditions.iter().map(named).collect();
        Self { faults, conditions, reading: Vec::new(), deep: 0, copies: COPIES, patterns: PATTERNS }
    }

    /// Parses a condition on targets of this kind; `None` if the kind is unknown.
    pub(super) fn read(&mut self, node: &'a Node, of: Option<Kind>) -> Option<Condition> {
        let Data::Map(entries) = &node.data else {
            expected(node, "a condition, such as `{gpu_util: {max: 1%}}`", &mut self.faults);
            return None;
        };
        if self.deep >= DEEPEST_CONDITION {
            let message = format!("conditions are nested more than {DEEPEST_CONDITION} levels deep here");
            self.faults.error(&node.at, message, "use fewer nested conditions");
            return None;
        }
        self.deep += 1;
        let condition = self.read_map(&node.at, entries.iter().collect(), of);
        self.deep -= 1;
        condition
    }

    /// Parses some keys of a map, combined by AND.
    pub(super) fn read_map(
        &mut self,
        at: &Range<usize>,
        entries: Vec<&'a Entry>,
        of: Option<Kind>,
    ) -> Option<Condition> {
        if entries.is_empty() {
            let help = "an empty condition would match every target; write what must be true";
            self.faults.error(at, "the condition is empty", help);
            return None;
        }
        let all = entries.len();
        let mut parts: Vec<Condition> =
            entries.into_iter().filter_map(|entry| self.part(entry, of)).collect();
        if parts.len() < all {
            return None;
        }
        if all == 1 { parts.pop() } else { Some(Condition::All(parts)) }
    }

    /// Parses selectors, combined by OR.
    pub(super) fn read_selectors(&mut self, node: &'a Node) -> Option<Condition> {
        let Data::Map(entries) = &node.data else {
            expected(node, "a map of selectors, such as `{users: [root]}`", &mut self.faults);
            return None;
        };
        let fields = Field::ALL.map(Field::name);
        let mut parts = Vec::new();
        for entry in entries {
            match Field::ALL.into_iter().find(|field| field.name() == entry.name) {
                Some(field) => {
                    let part = self.selector(field, &entry.value);
                    selectors::of_exempt(part.iter(), &entry.at, &mut self.faults);
                    parts.extend(part);
                }
                None => self.faults.push(unknown(entry, "`protect`, which takes selectors", &fields)),
            }
        }
        if entries.is_empty() {
            self.faults.error(&node.at, "an empty list", "give at least one, or remove the key");
        }
        Some(Condition::Any(parts))
    }

    fn part(&mut self, entry: &'a Entry, of: Option<Kind>) -> Option<Condition> {
        let (name, value) = (entry.name.as_str(), &entry.value);
        if value.is_null() {
            self.faults.push(nothing_given(entry));
            return None;
        }
        if let Some(attribute) = attributes::ALL.iter().find(|attribute| attribute.name == name) {
            self.fits((&entry.at, None), attribute, of)?;
            let (test, comparison) = comparisons::read(attribute, value, &mut self.faults)?;
            return Some(Condition::Leaf(Leaf { attribute, test, comparison }));
        }
        if let Some(field) = Field::ALL.into_iter().find(|field| field.name() == name) {
            return self.selector(field, value);
        }
        match name {
            "use" => self.used(value, of),
            "all" => self.several(value, of).map(Condition::All),
            "any" => self.several(value, of).map(Condition::Any),
            "not" => Some(Condition::Not(Box::new(self.read(value, of)?))),
            _ => {
                self.faults.push(self.no_such_key(entry, of));
                None
            }
        }
    }

    /// Returns whether a key can be part of a condition.
    pub(super) fn knows(name: &str) -> bool {
        attributes::ALL.iter().any(|attribute| attribute.name == name)
            || Field::ALL.iter().any(|field| field.name() == name)
            || keys::table("condition").names().contains(&name)
    }

    fn no_such_key(&self, entry: &Entry, of: Option<Kind>) -> Fault {
        let fits = |attribute: &&Attribute| of.is_none_or(|kind| attribute.of.contains(&kind));
        let attributes = attributes::ALL.iter().filter(fits).map(|attribute| attribute.name);
        let words = keys::table("condition").names();
        let known: Vec<&str> = attributes.chain(Field::ALL.map(Field::name)).chain(words).collect();
        let fault = unknown(entry, "a condition", &known);
        if self.conditions.contains_key(entry.name.as_str()) {
            return fault.help(format!("to use a named condition, write `use: {}`", entry.name));
        }
        fault
    }

    /// Checks that targets of this kind have the attribute.
    fn fits(
        &mut self,
        (at, by): (&Range<usize>, Option<&str>),
        attribute: &Attribute,
        of: Option<Kind>,
    ) -> Option<()> {
        let Some(kind) = of.filter(|kind| !attribute.of.contains(kind)) else { return Some(()) };
        let by = by.map(|name| format!(", which `{name}` contains")).unwrap_or_default();
        let kinds: Vec<&str> = attribute.of.iter().map(|kind| kind.name()).collect();
        let message = format!("a rule with `target: {}` cannot use `{}`{by}", kind.name(), attribute.name);
        self.faults.error(at, message, format!("it is available for: {}", kinds.join(", ")));
        None
    }

    fn several(&mut self, node: &'a Node, of: Option<Kind>) -> Option<Vec<Condition>> {
        let items = yaml::list(node, "conditions", &mut self.faults)?;
        let conditions: Vec<Condition> = items.iter().filter_map(|item| self.read(item, of)).collect();
        (conditions.len() == items.len()).then_some(conditions)
    }

    fn used(&mut self, node: &'a Node, of: Option<Kind>) -> Option<Condition> {
        let names = many(node, "names of conditions", &mut self.faults)?;
        let mut parts = Vec::new();
        for name in names {
            let text = yaml::text(name, "the name of a condition", &mut self.faults)?;
            let condition = self.condition(text, &name.at)?;
            for leaf in condition.leaves() {
                self.fits((&name.at, Some(text)), leaf.attribute, of)?;
            }
            parts.push(condition);
        }
        if parts.len() == 1 { parts.pop() } else { Some(Condition::All(parts)) }
    }

    /// Returns a named condition, parsing it at its first use.
    fn condition(&mut self, name: &str, at: &Range<usize>) -> Option<Condition> {
        let Some(condition) = self.conditions.get_mut(name) else {
            let known: Vec<&str> = self.conditions.keys().copied().collect();
            self.faults.push(no_such_name("condition", "conditions", (name, at), &known));
            return None;
        };
        condition.used = true;
        let written = condition.written;
        match &condition.read {
            Read::No => {}
            Read::Broken => return None,
            Read::As(condition) => {
                let (condition, size) = (condition.clone(), size(condition));
                return self.copied(condition, size, at);
            }
        }
        if self.reading.contains(&name) {
            let way: Vec<String> = self.reading.iter().map(|name| quoted(name)).collect();
            let message = format!("the condition {} uses itself", quoted(name));
            self.faults.error(at, message, format!("through {}", way.join(", then ")));
            return None;
        }
        self.read_condition(written)
    }

    /// Limits the number of copies that `use` makes.
    fn copied(&mut self, condition: Condition, size: usize, at: &Range<usize>) -> Option<Condition> {
        if size > self.copies {
            let help = "use fewer nested conditions";
            self.faults.error(at, "the conditions of this file are too large when fully expanded", help);
            return None;
        }
        self.copies -= size;
        Some(condition)
    }

    fn read_condition(&mut self, written: &'a Entry) -> Option<Condition> {
        self.reading.push(&written.name);
        let read = self.read(&written.value, None);
        self.reading.pop();
        if let Some(condition) = self.conditions.get_mut(written.name.as_str()) {
            condition.read = read.clone().map_or(Read::Broken, Read::As);
        }
        read
    }

    /// Parses unused named conditions, to report their errors, and warns that they are unused.
    pub(super) fn finish(mut self) -> Faults {
        let unused = self.conditions.values().filter(|condition| !condition.used);
        let unused: Vec<&'a Entry> = unused.map(|condition| condition.written).collect();
        for written in &unused {
            let condition = self.conditions.get(written.name.as_str());
            if condition.is_some_and(|condition| matches!(condition.read, Read::No)) {
                self.read_condition(written);
            }
        }
        // An invalid rule may have been meant to use it.
        if self.faults.errors() == 0 {
            for written in unused {
                let message = format!("the condition {} is not used by any rule", quoted(&written.name));
                self.faults.warn(&written.at, message, "remove it, or add `use` to a rule");
            }
        }
        self.faults
    }

    fn selector(&mut self, field: Field, node: &'a Node) -> Option<Condition> {
        let items = many(node, "patterns", &mut self.faults)?;
        let mut patterns = Vec::new();
        for item in items {
            let text = yaml::text(item, "text, a glob, or `re:` and a regular expression", &mut self.faults)?;
            if text.len() > LONGEST_PATTERN {
                self.faults.push(Fault::error(
                    &item.at,
                    format!("the pattern is longer than {LONGEST_PATTERN} bytes"),
                ));
                return None;
            }
            if text.starts_with("re:") || text.contains(['*', '?', '[', '{']) {
                if self.patterns == 0 {
                    let message =
                        format!("the file contains more than {PATTERNS} globs and regular expressions");
                    self.faults.error(&item.at, message, "combine some of them, such as `re:a|b`");
                    return None;
                }
                self.patterns -= 1;
            }
            match pattern::read(text) {
                Ok(pattern) => {
                    selectors::check((field, &pattern), &item.at, &mut self.faults);
                    patterns.push(pattern);
                }
                Err(wrong) => self.faults.error(&item.at, wrong.message, wrong.help),
            }
        }
        (patterns.len() == items.len()).then_some(Condition::Select(Selector { field, patterns }))
    }
}

/// Creates the error for an undefined name.
pub(super) fn no_such_name(
    what: &str,
    key: &str,
    (name, at): (&str, &Range<usize>),
    known: &[&str],
) -> Fault {
    let fault = Fault::error(at, format!("there is no {what} {}", quoted(name)));
    match yaml::nearest(name, known) {
        Some(near) => fault.help(format!("did you mean {}?", quoted(near))),
        None if known.is_empty() => fault.help(format!("define it under `{key}`")),
        None => {
            const MOST: usize = 10;
            let known: Vec<String> = known.iter().take(MOST).map(|name| quoted(name)).collect();
            fault.help(format!("define it under `{key}`; defined are: {}", known.join(", ")))
        }
    }
}

/// Returns the number of comparisons and patterns of a condition.
fn size(condition: &Condition) -> usize {
    condition.leaves().len() + condition.selectors().map(|selector| selector.patterns.len()).sum::<usize>()
}
