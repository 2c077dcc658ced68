//! Who has a GPU's device file open and stands in no list of it: forked workers that inherited it, and the driver's own
//! services.

use std::collections::BTreeSet;

use crate::{Gpu, Opener, PidNamespace, Snapshot};

/// Those of a GPU; `None` where that cannot be told. A GPU in MIG mode lists its processes in its instances, whose device
/// file is its own.
#[must_use]
pub fn unlisted<'a>(snapshot: &'a Snapshot, gpu: &Gpu) -> Option<Vec<&'a Opener>> {
    let openers = snapshot.openers.as_ref()?;
    if snapshot.namespace != PidNamespace::Host || gpu.about.mig.is_some() {
        return None;
    }
    let minor = gpu.about.minor?;
    let is_part = |part: &Gpu| {
        let parent = part.about.mig.as_ref().and_then(|mig| mig.parent.as_ref());
        parent.is_some() && parent == gpu.about.id.as_ref()
    };
    let instances: Vec<&Gpu> = snapshot.gpus.iter().filter(|other| is_part(other)).collect();
    let lists = if instances.is_empty() { vec![gpu] } else { instances };
    if lists.iter().any(|list| list.listed.is_none()) {
        return None;
    }
    let holders = lists.iter().flat_map(|list| &list.holders).chain(&gpu.holders);
    let listed: BTreeSet<u32> = holders.map(|holder| holder.process.pid()).collect();
    let unlisted = |who: &&Opener| who.minors.contains(&minor) && !listed.contains(&who.pid);
    Some(openers.who.iter().filter(unlisted).collect())
}
