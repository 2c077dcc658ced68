//! Memory that nobody uses, as a table: who is stuck, what is of nobody, what did not come back, and what frees each.

use bailiff_exposition::html::{Column, Html};
use bailiff_exposition::human::{Bytes, or_unknown};
use bailiff_snapshot::openers::unlisted;
use bailiff_snapshot::stuck::{MUCH_OF_NOBODY, OF_NOBODY_FREED_BY, UNRETURNED_FREED_BY};
use bailiff_snapshot::{Gpu, Holder, Opener, Snapshot, Stuck};

use crate::published::Published;

const STUCK: [Column; 6] =
    [("GPU", ""), ("pid", "n"), ("process", ""), ("memory", "n"), ("how it is", ""), ("what frees it", "")];
/// Rows of a GPU for those who are stuck, and for those who have its device open.
const MOST: usize = 32;

/// The table, where there is anything to be said.
pub(super) fn write(published: &Published, html: &mut Html) {
    let snapshot = &published.snapshot;
    let rows: Vec<[String; 6]> = snapshot.gpus.iter().flat_map(|gpu| rows(gpu, published)).collect();
    if rows.is_empty() {
        return;
    }
    html.table("Stuck", &STUCK);
    for row in &rows {
        html.row(&STUCK, row);
    }
    html.end_table();
    if let Some(unreadable) = unreadable(snapshot) {
        html.raw(&format!("<p class=\"dim\">open files of {unreadable} processes could not be read</p>"));
    }
}

/// How many processes may have a device file open unseen, where that was looked for.
fn unreadable(snapshot: &Snapshot) -> Option<u64> {
    snapshot.openers.as_ref().map(|openers| openers.unreadable).filter(|unreadable| *unreadable > 0)
}

fn rows(gpu: &Gpu, published: &Published) -> Vec<[String; 6]> {
    let snapshot = &published.snapshot;
    let shown = gpu.holders.iter().filter(|holder| published.selection.shows(holder.process));
    let stuck: Vec<_> = shown.filter_map(|holder| Some((holder, snapshot.stuck(holder)?))).collect();
    let mut rows: Vec<_> =
        stuck.iter().take(MOST).map(|(holder, stuck)| of_holder(gpu, holder, *stuck, snapshot)).collect();
    rows.extend(rest(gpu, stuck.len()));
    let has_ended = stuck.iter().any(|(_, stuck)| matches!(stuck, Stuck::Gone | Stuck::Zombie));
    let of_nobody = gpu.parts.map(|parts| parts.unaccounted).filter(|bytes| *bytes >= MUCH_OF_NOBODY);
    if let Some(bytes) = of_nobody {
        rows.push(of_gpu(gpu, Bytes(bytes.into()), ["of nobody who is listed", OF_NOBODY_FREED_BY]));
    }
    if of_nobody.is_some() || has_ended {
        let openers = unlisted(snapshot, gpu).unwrap_or_default();
        rows.extend(openers.iter().take(MOST).map(|opener| of_opener(gpu, opener)));
        rows.extend(rest(gpu, openers.len()));
    }
    if let Ok(bytes @ 1..) = gpu.unreturned.told() {
        rows.push(of_gpu(
            gpu,
            Bytes(bytes.into()),
            ["of those who ended: it did not come back", UNRETURNED_FREED_BY],
        ));
    }
    rows
}

fn of_holder(gpu: &Gpu, holder: &Holder, stuck: Stuck, snapshot: &Snapshot) -> [String; 6] {
    let facts = snapshot.processes.get(&holder.process).and_then(|process| process.facts.as_ref());
    let parent = facts.filter(|_| stuck == Stuck::Zombie).map(|facts| format!(": {}", facts.ppid));
    [
        gpu.about.index.clone(),
        holder.process.pid().to_string(),
        or_unknown(facts.map(|facts| facts.comm.clone())),
        or_unknown(holder.memory.map(|bytes| Bytes(bytes.into()))),
        format!("{}{}", stuck.words(), parent.unwrap_or_default()),
        stuck.freed_by().to_owned(),
    ]
}

/// Those beyond the rows that there is room for.
fn rest(gpu: &Gpu, all: usize) -> Option<[String; 6]> {
    let rest = all.checked_sub(MOST).filter(|rest| *rest > 0)?;
    let index = gpu.about.index.clone();
    let empty = String::new;
    Some([index, empty(), format!("and {rest} more"), empty(), empty(), empty()])
}

fn of_gpu(gpu: &Gpu, bytes: Bytes, [how, freed_by]: [&str; 2]) -> [String; 6] {
    let index = gpu.about.index.clone();
    [index, String::new(), String::new(), bytes.to_string(), how.to_owned(), freed_by.to_owned()]
}

fn of_opener(gpu: &Gpu, opener: &Opener) -> [String; 6] {
    [
        gpu.about.index.clone(),
        opener.pid.to_string(),
        opener.comm.clone(),
        or_unknown(None::<Bytes>),
        "it has the device open and is not listed".to_owned(),
        "its end".to_owned(),
    ]
}
