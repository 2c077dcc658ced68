//! Applies `CUDA_VISIBLE_DEVICES` to the driver's GPUs.

use crate::visible::Entry;

/// Returns the UUIDs of the visible GPUs in CUDA's order.
///
/// # Errors
/// If the variable names MIG instances, or GPUs whose UUID is unknown.
pub(super) fn visible(
    uuids: &[Option<String>],
    variable: Option<&str>,
) -> Result<Vec<Option<String>>, String> {
    let Some(variable) = variable else { return Ok(uuids.to_vec()) };
    if variable.starts_with("MIG-") {
        return Err("CUDA_VISIBLE_DEVICES names a MIG instance, and those are not counted here".to_owned());
    }
    let by_name = variable.starts_with("GPU-");
    let mut visible_indexes: Vec<usize> = Vec::new();
    for entry in Entry::all(variable) {
        // All entries have the form of the first one.
        let index = match entry {
            Entry::Gpu(prefix) if by_name => find_uuid(uuids, prefix)?,
            Entry::Index(index) if !by_name => Some(index),
            _ => None,
        };
        let Some(index) = index.filter(|index| *index < uuids.len()) else { break };
        // With a duplicate entry, CUDA sees no GPU.
        if visible_indexes.contains(&index) {
            return Ok(Vec::new());
        }
        visible_indexes.push(index);
    }
    Ok(visible_indexes.into_iter().map(|index| uuids[index].clone()).collect())
}

/// Finds a GPU by its UUID or an unambiguous prefix of it.
fn find_uuid(uuids: &[Option<String>], prefix: &str) -> Result<Option<usize>, String> {
    if uuids.iter().any(Option::is_none) {
        return Err(
            "CUDA_VISIBLE_DEVICES names GPUs by UUID, and the driver does not report all UUIDs".to_owned()
        );
    }
    let mut matching =
        (0..uuids.len()).filter(|index| uuids[*index].as_ref().is_some_and(|uuid| uuid.starts_with(prefix)));
    Ok(matching.next().filter(|_| matching.next().is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_parsed_as_by_the_driver() {
        let names = ["GPU-aa", "GPU-ab", "GPU-b"];
        let uuids: Vec<Option<String>> = names.iter().map(|name| Some((*name).to_owned())).collect();
        for (variable, expected) in [
            (None, vec![0, 1, 2]),
            (Some(""), vec![]),
            (Some("1"), vec![1]),
            (Some("2,0"), vec![2, 0]),
            (Some(" 2 , +0 "), vec![2, 0]),
            (Some("0,7,1"), vec![0]),
            (Some("0,-1,1"), vec![0]),
            (Some("-1"), vec![]),
            (Some("0,x,1"), vec![0]),
            (Some("1gpu2,2"), vec![1, 2]),
            (Some("0,0"), vec![]),
            (Some("NoDevFiles"), vec![]),
            (Some("GPU-b,GPU-aa"), vec![2, 0]),
            (Some("GPU-ab,GPU-a"), vec![1]),
            (Some("GPU-c,GPU-b"), vec![]),
            (Some("GPU-b,0"), vec![2]),
            (Some("0,GPU-b"), vec![0]),
        ] {
            let expected: Vec<Option<String>> =
                expected.into_iter().map(|index| uuids[index].clone()).collect();
            assert_eq!(visible(&uuids, variable), Ok(expected), "{variable:?}");
        }
        assert!(visible(&uuids, Some("MIG-1")).is_err());
        assert!(visible(&[None], Some("GPU-aa")).is_err(), "unknown is not absent");
    }
}
