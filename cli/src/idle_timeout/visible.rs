//! Which GPUs a command can see: `CUDA_VISIBLE_DEVICES`, understood as the CUDA programming guide says. What cannot be
//! understood for sure hides nothing.

use bailiff_snapshot::About;

/// The GPUs that can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Visible {
    /// All that the driver has.
    All,
    /// These; perhaps none.
    Only(Vec<Name>),
}

/// What a GPU is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    /// The begin of a UUID, of a GPU or a MIG instance.
    Uuid(String),
    /// The driver's number.
    Number(u32),
}

impl Visible {
    /// Understands the two variables.
    pub(crate) fn parse(devices: Option<&str>, order: Option<&str>) -> Self {
        let Some(devices) = devices else { return Self::All };
        let mut names = Vec::new();
        // What follows a word that names nothing is not seen either.
        for word in devices.split(',').map(str::trim) {
            if word.starts_with("GPU-") || (word.starts_with("MIG-") && !word.contains('/')) {
                names.push(Name::Uuid(word.to_owned()));
            } else if let Ok(number) = word.parse() {
                // By default CUDA counts the fastest first, and only the driver knows which those are.
                if order != Some("PCI_BUS_ID") {
                    return Self::All;
                }
                names.push(Name::Number(number));
            } else if word.starts_with("MIG-") {
                return Self::All;
            } else {
                break;
            }
        }
        Self::Only(names)
    }

    /// Whether this GPU or instance is among them.
    pub(crate) fn sees(&self, about: &About) -> bool {
        match self {
            Self::All => about.mig.is_none(),
            Self::Only(names) => names.iter().any(|name| match name {
                Name::Uuid(begin) => about.id.as_ref().is_some_and(|id| id.0.starts_with(begin)),
                Name::Number(number) => about.index == number.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bailiff_snapshot::{GpuId, MigIds};

    #[test]
    fn only_what_is_sure_hides_a_gpu() {
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
            let seen: Vec<bool> = all.iter().map(|about| visible.sees(about)).collect();
            assert_eq!(seen, expected, "{devices:?} {order:?}");
        }
    }
}
