//! The GPUs that a command sees: `CUDA_VISIBLE_DEVICES` as described in the CUDA programming guide. Ambiguous
//! values hide no GPU.

use bailiff_snapshot::About;

/// The visible GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Visible {
    /// All GPUs of the driver.
    All,
    /// These GPUs; may be empty.
    Only(Vec<GpuName>),
}

/// A GPU's name in `CUDA_VISIBLE_DEVICES`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GpuName {
    /// A UUID prefix of a GPU or MIG instance.
    Uuid(String),
    /// The GPU's index in the driver's order.
    Index(u32),
}

impl Visible {
    /// Parses `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`.
    pub(crate) fn parse(devices: Option<&str>, order: Option<&str>) -> Self {
        let Some(devices) = devices else { return Self::All };
        let mut names = Vec::new();
        // CUDA ignores everything after the first invalid entry.
        for entry in devices.split(',').map(str::trim) {
            if entry.starts_with("GPU-") || (entry.starts_with("MIG-") && !entry.contains('/')) {
                names.push(GpuName::Uuid(entry.to_owned()));
            } else if let Ok(number) = entry.parse() {
                // By default CUDA numbers the fastest GPUs first, an order that only the driver knows.
                if order != Some("PCI_BUS_ID") {
                    return Self::All;
                }
                names.push(GpuName::Index(number));
            } else if entry.starts_with("MIG-") {
                return Self::All;
            } else {
                break;
            }
        }
        Self::Only(names)
    }

    /// Returns whether this GPU or MIG instance is visible.
    pub(crate) fn sees(&self, about: &About) -> bool {
        match self {
            Self::All => about.mig.is_none(),
            Self::Only(names) => names.iter().any(|name| match name {
                GpuName::Uuid(prefix) => about.id.as_ref().is_some_and(|id| id.0.starts_with(prefix)),
                GpuName::Index(number) => about.index == number.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bailiff_snapshot::{GpuId, MigIds};

    #[test]
    fn ambiguous_visible_devices_hide_no_gpu() {
        let gpu = |index: u32, id: &str| About { id: Some(GpuId(id.into())), ..About::unnamed(index) };
        let instance = About {
            index: "1:0".into(),
            mig: Some(MigIds { parent: None, gpu_instance: None, compute_instance: None }),
            ..gpu(0, "MIG-cc")
        };
        let all = [gpu(0, "GPU-aa"), gpu(1, "GPU-ab"), instance];
        let bus = Some("PCI_BUS_ID");
        let cases = [
            (None, None, [true, true, false]),
            (Some("GPU-ab"), None, [false, true, false]),
            (Some("GPU-aa, GPU-a"), None, [true, true, false]),
            (Some("MIG-cc"), None, [false, false, true]),
            (Some("MIG-GPU-aa/1/0"), None, [true, true, false]),
            (Some("1"), bus, [false, true, false]),
            (Some("1"), None, [true, true, false]),
            (Some("1"), Some("FASTEST_FIRST"), [true, true, false]),
            (Some("0,-1,1"), bus, [true, false, false]),
            (Some("GPU-ab,nonsense,GPU-aa"), None, [false, true, false]),
            (Some(""), None, [false, false, false]),
            (Some("-1"), None, [false, false, false]),
        ];
        for (devices, order, expected) in cases {
            let visible = Visible::parse(devices, order);
            let visible_gpus: Vec<bool> = all.iter().map(|about| visible.sees(about)).collect();
            assert_eq!(visible_gpus, expected, "{devices:?} {order:?}");
        }
    }
}
