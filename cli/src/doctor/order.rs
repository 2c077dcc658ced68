//! The order in which CUDA counts GPUs, beside the driver's: programs that take a number mean CUDA's.

use bailiff_sampler::cuda;
use bailiff_snapshot::Sample;

use super::check::Check;
use super::child;
use super::flags::Doctor;

const NAME: &str = "device order";

/// Whether a number means the same GPU to CUDA and to the driver.
pub(super) fn check(flags: &Doctor, sample: Option<&Sample>) -> Check {
    let gpus = sample.into_iter().flat_map(|sample| &sample.gpus).filter(|gpu| gpu.about.mig.is_none());
    let driver: Option<Vec<String>> = gpus.map(|gpu| Some(gpu.about.id.as_ref()?.0.clone())).collect();
    let Some(driver) = driver.filter(|gpus| !gpus.is_empty()) else {
        return Check::skip(NAME, "the driver does not tell its order", None);
    };
    match query(flags) {
        Ok(cuda) => compare(&driver, &cuda),
        Err(why) => Check::skip(NAME, format!("CUDA does not tell its order: {why}"), None),
    }
}

/// CUDA's order as a program of this user would see it.
fn query(flags: &Doctor) -> Result<Vec<String>, String> {
    let mut command = child::itself();
    command.arg(cuda::ROLE).arg(&flags.cuda_library);
    // All GPUs, and no server of MPS started for the sake of a question.
    command.env_remove("CUDA_VISIBLE_DEVICES").env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    let output = child::run(command, flags.deadline)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        return Err(text(&output.stderr));
    }
    Ok(text(&output.stdout).lines().map(str::to_owned).collect())
}

fn compare(driver: &[String], cuda: &[String]) -> Check {
    let place = |uuid: &String| driver.iter().position(|ours| ours == uuid);
    let pairs: Vec<(usize, usize)> =
        cuda.iter().enumerate().filter_map(|(at, uuid)| Some((at, place(uuid)?))).collect();
    if pairs.is_empty() {
        return Check::skip(NAME, "CUDA and the driver know no GPU in common", None);
    }
    let differ: Vec<String> = pairs
        .iter()
        .filter(|(cuda, driver)| cuda != driver)
        .map(|(cuda, driver)| format!("CUDA's {cuda} is the driver's {driver}"))
        .collect();
    if differ.is_empty() {
        return Check::ok(NAME, "a number means the same GPU to CUDA and to the driver");
    }
    Check::warn(
        NAME,
        differ.join(", "),
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID; bailiff lease does both",
    )
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn orders_are_compared_by_uuid() {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let state = |cuda: &[&str]| compare(&of(&["a", "b", "c"]), &of(cuda));
        assert_eq!(state(&["a", "b", "c"]).state, State::Ok);
        assert_eq!(state(&["a", "b"]).state, State::Ok, "the last is hidden");
        assert_eq!(state(&["x"]).state, State::Skip);
        assert_eq!(state(&["b", "a", "c"]).text, "CUDA's 0 is the driver's 1, CUDA's 1 is the driver's 0");
    }
}
