//! Conditions made ready to be asked of thousands of targets: each attribute is read once per target and tick.

use std::time::Duration;

use crate::engine::texts;
use crate::policy::{Ask, Kind, Selector};
use crate::rules::Attribute;
use crate::value::{Test, Value};
use crate::view::{Target, View};
use bailiff_snapshot::Truth;

/// The attributes and selectors that a policy asks for, and what they say of every target of a view.
#[derive(Debug, Default)]
pub(crate) struct Table {
    columns: Vec<&'static Attribute>,
    cells: Vec<Value>,
    selectors: Vec<Selector>,
    meant: Vec<Truth>,
    ages: Vec<Age>,
}

/// How old a target is, as far as a start-up grace asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// It has no start, or there is nobody left to be spared.
    None,
    /// The start of one of its processes is not known.
    Unknown,
    /// Its youngest process has lived so long.
    Youngest(Duration),
}

impl Table {
    /// The column of an attribute.
    pub(crate) fn column(&mut self, attribute: &'static Attribute) -> usize {
        self.columns.iter().position(|column| *column == attribute).unwrap_or_else(|| {
            self.columns.push(attribute);
            self.columns.len() - 1
        })
    }

    /// The column of a selector; rules that ask for the same share one.
    fn selector(&mut self, selector: &Selector) -> usize {
        let same = |other: &Selector| other.field == selector.field && written(other).eq(written(selector));
        self.selectors.iter().position(same).unwrap_or_else(|| {
            self.selectors.push(selector.clone());
            self.selectors.len() - 1
        })
    }

    /// Reads all values of a view.
    pub(crate) fn fill(&mut self, view: &View) {
        self.cells.clear();
        self.meant.clear();
        self.ages.clear();
        for target in &view.targets {
            self.cells.extend(self.columns.iter().map(|attribute| read(attribute, target, view)));
            self.meant.extend(self.selectors.iter().map(|selector| texts::select(selector, target, view)));
            self.ages.push(Age::of(target, view));
        }
    }

    /// The values of one target, by its place in the view.
    pub(crate) fn row<'a>(&'a self, view: &'a View, target: usize) -> Option<Row<'a>> {
        let width = self.columns.len();
        let cells = self.cells.get(target * width..(target + 1) * width)?;
        let width = self.selectors.len();
        let meant = self.meant.get(target * width..(target + 1) * width)?;
        Some(Row { view, target: view.targets.get(target)?, cells, meant, age: *self.ages.get(target)? })
    }
}

fn written(selector: &Selector) -> impl Iterator<Item = String> {
    selector.patterns.iter().map(ToString::to_string)
}

impl Age {
    fn of(target: &Target, view: &View) -> Self {
        if target.kind == Kind::Gpu {
            return Self::None;
        }
        let mut youngest = Self::None;
        for process in view.processes(target).filter(|process| process.state != "gone") {
            let Some(age) = view.age(process) else { return Self::Unknown };
            youngest = match youngest {
                Self::Youngest(other) => Self::Youngest(age.min(other)),
                _ => Self::Youngest(age),
            };
        }
        youngest
    }

    /// Whether it has lived so long.
    pub(crate) fn at_least(self, grace: Duration) -> Truth {
        match self {
            Self::None => Truth::True,
            _ if grace.is_zero() => Truth::True,
            Self::Unknown => Truth::Unknown,
            Self::Youngest(age) => (age >= grace).into(),
        }
    }
}

/// Reads one attribute of one target.
pub(crate) fn read(attribute: &Attribute, target: &Target, view: &View) -> Value {
    if attribute.of.contains(&target.kind) {
        (attribute.read)(target, view)
    } else {
        Value::Unknown("this kind of target does not have it")
    }
}

/// One target and its values.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) view: &'a View,
    pub(crate) target: &'a Target,
    cells: &'a [Value],
    meant: &'a [Truth],
    pub(crate) age: Age,
}

impl Row<'_> {
    pub(crate) fn value(&self, column: usize) -> Value {
        self.cells.get(column).copied().unwrap_or(Value::Unknown("not read"))
    }
}

/// An [`Ask`] whose attributes are columns.
#[derive(Debug)]
pub(crate) enum Node {
    Leaf(usize, Test),
    Select(usize),
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
}

impl Node {
    pub(crate) fn of(ask: &Ask, table: &mut Table) -> Self {
        match ask {
            Ask::Leaf(leaf) => Self::Leaf(table.column(leaf.attribute), leaf.test),
            Ask::Select(selector) => Self::Select(table.selector(selector)),
            Ask::All(asks) => Self::All(asks.iter().map(|ask| Self::of(ask, table)).collect()),
            Ask::Any(asks) => Self::Any(asks.iter().map(|ask| Self::of(ask, table)).collect()),
            Ask::Not(ask) => Self::Not(Box::new(Self::of(ask, table))),
        }
    }

    pub(crate) fn ask(&self, row: &Row<'_>) -> Truth {
        match self {
            Self::Leaf(column, test) => test.ask(row.value(*column)),
            Self::Select(column) => row.meant.get(*column).copied().unwrap_or(Truth::Unknown),
            Self::All(nodes) => all(nodes.iter().map(|node| node.ask(row))),
            Self::Any(nodes) => !all(nodes.iter().map(|node| !node.ask(row))),
            Self::Not(node) => !node.ask(row),
        }
    }
}

/// All hold; the first that does not ends the asking.
fn all(mut each: impl Iterator<Item = Truth>) -> Truth {
    let joined = each.try_fold(Truth::True, |all, one| match all.and(one) {
        Truth::False => Err(Truth::False),
        joined => Ok(joined),
    });
    joined.unwrap_or_else(|is_false| is_false)
}
