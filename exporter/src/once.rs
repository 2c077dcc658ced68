//! One page on stdout, without a server.

use std::future::Future;
use std::io::{self, Write};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bailiff_exposition::own::Own;

use crate::Look;
use crate::clock::since_boot;
use crate::page::{self, Format, Moment};
use crate::published::Published;
use crate::schedule::{self, Rhythm};

/// Use is what happens between two looks, so there must be two.
const LOOKS: u64 = 2;

/// Looks twice, one interval apart, and prints the page.
///
/// # Errors
/// Where looking or printing fails, or the wish to end comes first.
pub async fn run(
    rhythm: Rhythm,
    format: Format,
    look: Box<dyn Look>,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let (_interval, mut latest) = schedule::start(look, rhythm).context("cannot start looking")?;
    let enough =
        |newest: &Option<Arc<Published>>| newest.as_ref().is_some_and(|newest| newest.snapshot.seq >= LOOKS);
    let seen = tokio::select! {
        seen = latest.wait_for(enough) => seen.map(|newest| newest.clone()).ok().flatten(),
        () = shutdown => bail!("told to end before the second look"),
    };
    let published = seen.context("the sampling thread ended")?;
    print(&published, format, &mut io::stdout().lock()).context("cannot write the page")
}

fn print(published: &Published, format: Format, out: &mut dyn Write) -> io::Result<()> {
    page::write(Some(published.content()), format, out)?;
    let moment = Moment { age: Some(published.age(since_boot())), own: Own::read(), ..Moment::default() };
    page::write_tail(&moment, format, out)?;
    out.flush()
}
