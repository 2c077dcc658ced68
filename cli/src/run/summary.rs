//! What is said of a command at its end: only what was observed. Pure.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use bailiff_exposition::human::{Bytes, Span};
use bailiff_ledger::{Gpu, Ledger, UNLIMITED, format_uuid};

use super::job::Outcome;
use super::live::{Ending, Lived};

/// The lines of a summary.
pub(crate) fn lines(outcome: &Outcome, quota: Option<&Ledger>) -> Vec<String> {
    let mut lines = vec![ended(outcome)];
    lines.extend(gpu_time(outcome));
    if let Some(used) = &outcome.used {
        let peaks = used.peak.iter().map(|(gpu, bytes)| format!("{} on {gpu}", size(*bytes)));
        lines.extend(listed("peak memory", peaks));
    }
    let asked = quota.into_iter().flat_map(|ledger| &ledger.gpus).map(of_quota);
    lines.extend(listed("peak under the quota", asked));
    lines
}

fn ended(outcome: &Outcome) -> String {
    let took = Span(outcome.took);
    let (status, rest) = match (outcome.lived, outcome.ending) {
        (Lived::Left(_), _) => {
            return format!("processes that the command has started are left after {took}");
        }
        (Lived::Ended(_), Some(Ending { of_the_rest: false, .. })) => {
            return format!("the command was ended after {took}");
        }
        (Lived::Ended(status), Some(_)) => (status, "; what it had left was ended"),
        (Lived::Ended(status), None) => (status, ""),
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("the command ended with {code} after {took}{rest}"),
        (None, signal) => {
            format!("signal {} ended the command after {took}{rest}", signal.unwrap_or_default())
        }
    }
}

fn gpu_time(outcome: &Outcome) -> Option<String> {
    let held = outcome.gpus.map(|gpus| {
        let seconds = gpu_seconds(outcome.took, gpus);
        format!("{gpus} {} held, {seconds:.0} GPU-seconds", if gpus == 1 { "GPU" } else { "GPUs" })
    });
    let busy = outcome.used.as_ref().and_then(super::usage::Use::busy_seconds);
    match (held, busy.map(|busy| format!("{busy:.0} GPU-seconds busy"))) {
        (Some(held), Some(busy)) => Some(format!("{held}; {busy}")),
        (held, busy) => held.or(busy),
    }
}

#[expect(clippy::cast_precision_loss, reason = "nobody has so many GPUs")]
fn gpu_seconds(took: Duration, gpus: usize) -> f64 {
    took.as_secs_f64() * gpus as f64
}

fn of_quota(gpu: &Gpu) -> String {
    let limit = if gpu.limit == UNLIMITED { String::new() } else { format!(" of {}", size(gpu.limit)) };
    let refused = match gpu.denied {
        0 => String::new(),
        1 => ", 1 request refused".to_owned(),
        many => format!(", {many} requests refused"),
    };
    format!("{}{limit} on {}{refused}", size(gpu.peak), format_uuid(gpu.uuid))
}

fn size(bytes: u64) -> Bytes {
    Bytes(bytes.into())
}

fn listed(what: &str, each: impl Iterator<Item = String>) -> Option<String> {
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| format!("{what}: {}", each.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::super::live::Why;
    use super::*;

    fn outcome(status: i32, of_the_rest: Option<bool>) -> Outcome {
        let ending = of_the_rest.map(|of_the_rest| Ending { why: Why::TimeUp, of_the_rest });
        let lived = Lived::Ended(ExitStatus::from_raw(status));
        Outcome { lived, ending, took: Duration::from_secs(90), gpus: None, used: None }
    }

    #[test]
    fn only_what_was_observed_is_said() {
        let cases = [
            (outcome(3 << 8, None), "the command ended with 3 after 1 min 30 s"),
            (outcome(9, None), "signal 9 ended the command after 1 min 30 s"),
            (outcome(0, Some(false)), "the command was ended after 1 min 30 s"),
            (
                outcome(3 << 8, Some(true)),
                "the command ended with 3 after 1 min 30 s; what it had left was ended",
            ),
        ];
        for (outcome, expected) in cases {
            assert_eq!(lines(&outcome, None), [expected]);
        }
        let held = Outcome { gpus: Some(2), ..outcome(0, None) };
        assert_eq!(lines(&held, None)[1], "2 GPUs held, 180 GPU-seconds");
    }

    #[test]
    fn a_quota_is_told_of_each_gpu() {
        let mut uuid = [0; 16];
        uuid[0] = 0xab;
        let gpu = |limit, denied| Gpu {
            uuid,
            limit,
            used: 0,
            peak: 3 << 29,
            denied,
            denied_bytes: 0,
            last_denied: 0,
            by_process: Vec::new(),
        };
        let name = "ab000000-0000-0000-0000-000000000000";
        for (gpu, expected) in [
            (gpu(2 << 30, 0), format!("1.5 GiB of 2.0 GiB on {name}")),
            (gpu(2 << 30, 1), format!("1.5 GiB of 2.0 GiB on {name}, 1 request refused")),
            (gpu(UNLIMITED, 7), format!("1.5 GiB on {name}, 7 requests refused")),
        ] {
            assert_eq!(of_quota(&gpu), expected);
        }
    }
}
