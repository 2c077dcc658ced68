//! The keys of a format, given by a JSON Schema that editors read as well. Each definition in the schema describes one
//! map: its name in error messages (`title`), its keys with the purpose of each, and which keys are required.

use super::fault::Faults;
use super::tree::{self, Entry, Node};

/// The schema of a format.
#[derive(Debug)]
pub struct Grammar(Option<Node>);

impl Grammar {
    /// Parses a schema, which is JSON and so YAML. It is a part of the program and known to be valid.
    pub fn parse(schema: &str) -> Self {
        Self(tree::parse(schema, &mut Faults::none("", schema)))
    }

    /// Returns the map that a file is.
    pub const fn file(&self) -> Table<'_> {
        Table { grammar: self, map: self.0.as_ref() }
    }

    /// Returns the map that is defined by this name.
    pub fn table(&self, name: &str) -> Table<'_> {
        let map = self.0.as_ref().and_then(|root| root.get("$defs")?.get(name));
        Table { grammar: self, map }
    }
}

/// A map of known keys.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    grammar: &'a Grammar,
    map: Option<&'a Node>,
}

impl<'a> Table<'a> {
    /// Returns the name of such a map for messages: `a rule`.
    pub fn what(&self) -> &'a str {
        self.map.and_then(|map| map.get("title")?.text()).unwrap_or_default()
    }

    fn keys(&self) -> &'a [Entry] {
        self.map.and_then(|map| map.get("properties")).map(Node::entries).unwrap_or_default()
    }

    fn key(&self, name: &str) -> Option<&'a Node> {
        self.keys().iter().find(|entry| entry.name == name).map(|entry| &entry.value)
    }

    /// Returns the names of its keys, in order.
    pub fn names(&self) -> Vec<&'a str> {
        self.keys().iter().map(|entry| entry.name.as_str()).collect()
    }

    /// Returns the names of the keys that it needs, in order.
    pub(super) fn required(&self) -> impl Iterator<Item = &'a str> {
        let names = self.map.and_then(|map| map.get("required")).map(Node::items).unwrap_or_default();
        names.iter().filter_map(Node::text)
    }

    /// Returns the purpose of a key for messages.
    pub(super) fn explained(&self, name: &str) -> String {
        let help = self.key(name).and_then(|key| key.get("description")?.text()).unwrap_or_default();
        let mut letters = help.trim_end_matches('.').chars();
        let first = letters.next().map(|letter| letter.to_ascii_lowercase());
        first.into_iter().chain(letters).collect()
    }

    /// Returns whether the value of a key is a map that needs no key.
    pub(super) fn takes_empty_map(&self, name: &str) -> bool {
        let definition = self.key(name).and_then(|key| key.get("$ref")?.text()?.strip_prefix("#/$defs/"));
        let map = definition.and_then(|name| self.grammar.table(name).map);
        map.is_some_and(|map| {
            let needs = |key: &str| map.get(key).is_some();
            needs("properties") && !needs("required") && !needs("minProperties")
        })
    }
}
