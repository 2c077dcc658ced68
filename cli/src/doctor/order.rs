//! Compares CUDA's GPU indexes with those of the driver, because programs interpret an index as CUDA's.

use bailiff_sampler::cuda;
use bailiff_snapshot::Sample;

use super::Doctor;
use super::check::Check;
use super::child;
use crate::output::joined;

const NAME: &str = "device order";

/// Checks that CUDA and the driver use the same indexes.
pub(super) fn check(flags: &Doctor, sample: Option<&Sample>) -> Check {
    let gpus = sample.into_iter().flat_map(|sample| &sample.gpus).filter(|gpu| gpu.about.mig.is_none());
    let driver: Option<Vec<String>> = gpus.map(|gpu| Some(gpu.about.id.as_ref()?.0.clone())).collect();
    let Some(driver) = driver.filter(|gpus| !gpus.is_empty()) else {
        return Check::skip(NAME, "the driver reports no GPU UUIDs", None);
    };
    match query(flags) {
        Ok(cuda) => compare(&driver, &cuda),
        Err(why) => Check::skip(NAME, format!("CUDA's order is unknown: {why}"), None),
    }
}

/// Returns the UUIDs in CUDA's order, as a program of this user sees them.
fn query(flags: &Doctor) -> Result<Vec<String>, String> {
    let mut command = child::itself();
    command.arg(cuda::ROLE).arg(&flags.cuda_library);
    // With these variables, the query lists all GPUs and does not start an MPS server.
    command.env_remove("CUDA_VISIBLE_DEVICES").env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    let output = child::run(command, flags.deadline)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        return Err(text(&output.stderr));
    }
    Ok(text(&output.stdout).lines().map(str::to_owned).collect())
}

fn compare(driver: &[String], cuda: &[String]) -> Check {
    let position = |uuid: &String| driver.iter().position(|other| other == uuid);
    let pairs: Vec<(usize, usize)> =
        cuda.iter().enumerate().filter_map(|(at, uuid)| Some((at, position(uuid)?))).collect();
    if pairs.is_empty() {
        return Check::skip(NAME, "CUDA and the driver report different GPUs", None);
    }
    let differ = pairs.iter().filter(|(cuda, driver)| cuda != driver);
    let differ = differ.map(|(cuda, driver)| format!("CUDA's GPU {cuda} is the driver's GPU {driver}"));
    let differ = joined(differ, ", ");
    if differ.is_empty() {
        return Check::ok(NAME, "CUDA and the driver use the same GPU indexes");
    }
    Check::warn(
        NAME,
        differ,
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID, or use GPU UUIDs (bailiff lease does both)",
    )
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn device_orders_are_compared_by_uuid() {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let state = |cuda: &[&str]| compare(&of(&["a", "b", "c"]), &of(cuda));
        assert_eq!(state(&["a", "b", "c"]).state, State::Ok);
        assert_eq!(state(&["a", "b"]).state, State::Ok, "the last is hidden");
        assert_eq!(state(&["x"]).state, State::Skip);
        assert_eq!(
            state(&["b", "a", "c"]).text,
            "CUDA's GPU 0 is the driver's GPU 1, CUDA's GPU 1 is the driver's GPU 0"
        );
    }
}
