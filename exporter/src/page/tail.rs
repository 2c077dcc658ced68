//! The tail of the metrics page: values that differ between requests.

use std::time::Duration;

use crate::metrics;
use crate::requests::Count;
use bailiff_exposition::own::{self, Own};
use bailiff_exposition::{Labels, Writer};

/// Values at the time of a request.
#[derive(Debug, Default)]
pub struct Moment {
    /// Time since the snapshot was started; `None` before the first.
    pub age: Option<Duration>,
    /// Responses so far; `None` without a server.
    pub requests: Option<Vec<Count>>,
    /// Connections refused so far.
    pub refused: u64,
    /// Clients of the stream; `None` without a stream.
    pub stream_clients: Option<u64>,
    /// Snapshots that could not be recorded; `None` without a record.
    pub record_failures: Option<u64>,
    /// Resource use of this process.
    pub own: Own,
}

pub(super) fn write(moment: &Moment, page: &mut Writer<'_>) {
    let none = Labels::default();
    let rows = [(&none, moment)];
    page.rows(&metrics::SNAPSHOT_AGE, &rows, |moment| Some(moment.age?.as_secs_f64()));
    if let Some(requests) = &moment.requests {
        for count in requests {
            let labels = none.clone().with("path", &count.path).with("code", &count.code.to_string());
            page.put(&metrics::HTTP_REQUESTS, &labels, count.requests);
        }
        page.put(&metrics::HTTP_REFUSED, &none, moment.refused);
    }
    page.rows(&metrics::STREAM_CLIENTS, &rows, |moment| moment.stream_clients);
    page.rows(&metrics::RECORD_FAILURES, &rows, |moment| moment.record_failures);
    own::write(&moment.own, page);
}
