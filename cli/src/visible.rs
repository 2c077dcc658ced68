//! `CUDA_VISIBLE_DEVICES`, parsed as the driver does.

use bailiff_snapshot::About;

/// An entry of the variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    /// The UUID of a GPU, or a prefix of it.
    Gpu(&'a str),
    /// The name of a MIG instance.
    Instance(&'a str),
    /// The index of a GPU.
    Index(usize),
}

impl<'a> Entry<'a> {
    /// Returns the entries up to the first invalid one, because CUDA ignores everything after it.
    pub(crate) fn all(variable: &'a str) -> impl Iterator<Item = Self> {
        variable.split(',').map_while(|entry| Self::of(entry.trim()))
    }

    fn of(entry: &'a str) -> Option<Self> {
        match entry {
            gpu if gpu.starts_with("GPU-") => Some(Self::Gpu(gpu)),
            instance if instance.starts_with("MIG-") => Some(Self::Instance(instance)),
            // As `strtoul` does: digits after an optional sign, and any text after them.
            number => {
                let digits = number.strip_prefix('+').unwrap_or(number);
                let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
                digits[..end].parse().ok().map(Self::Index)
            }
        }
    }
}

/// The GPUs that a command sees. Ambiguous values of the variable do not hide any GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Visible {
    /// All GPUs of the driver.
    All,
    /// The GPUs with these indexes or UUID prefixes; may be empty.
    Only(Vec<String>),
}

impl Visible {
    /// Parses `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`.
    pub(crate) fn parse(devices: Option<&str>, order: Option<&str>) -> Self {
        let Some(devices) = devices else { return Self::All };
        let mut names = Vec::new();
        for entry in Entry::all(devices) {
            names.push(match entry {
                // By default CUDA numbers the fastest GPUs first, an order that only the driver knows.
                Entry::Index(_) if order != Some("PCI_BUS_ID") => return Self::All,
                Entry::Index(index) => index.to_string(),
                // A name with the ids of a GPU and of its instances.
                Entry::Instance(name) if name.contains('/') => return Self::All,
                Entry::Gpu(name) | Entry::Instance(name) => name.to_owned(),
            });
        }
        Self::Only(names)
    }

    /// Returns whether this GPU or MIG instance is visible.
    pub(crate) fn sees(&self, about: &About) -> bool {
        let has_name = |name: &String| {
            about.index == *name || about.id.as_ref().is_some_and(|id| id.0.starts_with(name))
        };
        match self {
            Self::All => about.mig.is_none(),
            Self::Only(names) => names.iter().any(has_name),
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
