//! Prints one metrics page on stdout, without a server (`--once`).

use std::future::Future;
use std::io::{self, Write};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bailiff_exposition::own::Own;
use bailiff_proc::clock::since_boot;

use crate::SampleSource;
use crate::page::{self, Format, Moment};
use crate::published::Published;
use crate::schedule::{self, Schedule};

/// Number of samples to take; utilization needs two.
const SAMPLES: u64 = 2;

/// Takes two samples one interval apart, and prints the metrics page.
///
/// # Errors
/// If sampling or printing fails, or the shutdown request comes first.
pub async fn run(
    schedule: Schedule,
    format: Format,
    source: Box<dyn SampleSource>,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let (_interval, mut latest) = schedule::start(source, schedule).context("cannot start sampling")?;
    let enough = |newest: &Option<Arc<Published>>| {
        newest.as_ref().is_some_and(|newest| newest.snapshot.seq >= SAMPLES)
    };
    let seen = tokio::select! {
        seen = latest.wait_for(enough) => seen.map(|newest| newest.clone()).ok().flatten(),
        () = shutdown => bail!("interrupted before the second sample"),
    };
    let published = seen.context("the sampling thread stopped")?;
    print(&published, format, &mut io::stdout().lock()).context("cannot write the page")
}

fn print(published: &Published, format: Format, out: &mut dyn Write) -> io::Result<()> {
    page::write(Some(published.content()), format, out)?;
    let moment = Moment { age: Some(published.age(since_boot())), own: Own::read(), ..Moment::default() };
    page::write_tail(&moment, format, out)?;
    out.flush()
}
