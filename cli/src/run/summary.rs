//! The summary of a command after its exit; it contains only observed values. Pure.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use bailiff_exposition::human::{Bytes, Span};
use bailiff_ledger::{Ledger, LedgerGpu, UNLIMITED, format_uuid};

use super::job::Outcome;
use super::running::{CommandExit, Termination};

/// Returns the lines of the summary.
pub(crate) fn lines(outcome: &Outcome, quota: Option<&Ledger>) -> Vec<String> {
    let mut lines = vec![result(outcome)];
    lines.extend(gpu_time(outcome));
    if let Some(used) = &outcome.used {
        let peaks = used.peak.iter().map(|(gpu, bytes)| format!("{} on {gpu}", size(*bytes)));
        lines.extend(labelled("peak memory", peaks));
    }
    let quotas = quota.into_iter().flat_map(|ledger| &ledger.gpus).map(quota_peak);
    lines.extend(labelled("peak under the quota", quotas));
    lines
}

fn result(outcome: &Outcome) -> String {
    let took = Span(outcome.took);
    let (status, rest) = match (outcome.exit, outcome.termination) {
        (CommandExit::Detached(_), _) => {
            return format!("processes started by the command are still running after {took}");
        }
        (CommandExit::Ended(_), Some(Termination { of_leftovers: false, .. })) => {
            return format!("the command was stopped after {took}");
        }
        (CommandExit::Ended(status), Some(_)) => (status, "; its remaining processes were stopped"),
        (CommandExit::Ended(status), None) => (status, ""),
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("the command exited with {code} after {took}{rest}"),
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
    let busy = outcome.used.as_ref().and_then(super::monitor::GpuUsage::busy_seconds);
    match (held, busy.map(|busy| format!("{busy:.0} GPU-seconds busy"))) {
        (Some(held), Some(busy)) => Some(format!("{held}; {busy}")),
        (held, busy) => held.or(busy),
    }
}

#[expect(clippy::cast_precision_loss, reason = "the number of GPUs is small")]
fn gpu_seconds(took: Duration, gpus: usize) -> f64 {
    took.as_secs_f64() * gpus as f64
}

fn quota_peak(gpu: &LedgerGpu) -> String {
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

fn labelled(label: &str, values: impl Iterator<Item = String>) -> Option<String> {
    let values: Vec<String> = values.collect();
    (!values.is_empty()).then(|| format!("{label}: {}", values.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::super::running::TerminationReason;
    use super::*;

    fn outcome(status: i32, of_leftovers: Option<bool>) -> Outcome {
        let termination =
            of_leftovers.map(|of_leftovers| Termination { why: TerminationReason::TimeUp, of_leftovers });
        let exit = CommandExit::Ended(ExitStatus::from_raw(status));
        Outcome { exit, termination, took: Duration::from_secs(90), gpus: None, used: None }
    }

    #[test]
    fn summary_contains_observed_values_only() {
        let cases = [
            (outcome(3 << 8, None), "the command exited with 3 after 1 min 30 s"),
            (outcome(9, None), "signal 9 ended the command after 1 min 30 s"),
            (outcome(0, Some(false)), "the command was stopped after 1 min 30 s"),
            (
                outcome(3 << 8, Some(true)),
                "the command exited with 3 after 1 min 30 s; its remaining processes were stopped",
            ),
        ];
        for (outcome, expected) in cases {
            assert_eq!(lines(&outcome, None), [expected]);
        }
        let held = Outcome { gpus: Some(2), ..outcome(0, None) };
        assert_eq!(lines(&held, None)[1], "2 GPUs held, 180 GPU-seconds");
    }

    #[test]
    fn quota_peak_names_limit_gpu_and_refusals() {
        let mut uuid = [0; 16];
        uuid[0] = 0xab;
        let gpu = |limit, denied| LedgerGpu {
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
            assert_eq!(quota_peak(&gpu), expected);
        }
    }
}
