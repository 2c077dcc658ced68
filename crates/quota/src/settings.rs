//! Settings from the environment: limits, the shared quota and logging. The caller passes in the variables.

use std::ffi::CString;

use bailiff_size::{UNLIMITED, bytes, limit};

/// Default limit in bytes, as in cuda-wrapper.
pub(crate) const DEFAULT: u64 = 4_217_928_960;

/// UUID of a GPU, which is the same in all processes.
pub(crate) type Uuid = [u8; 16];

/// Settings from the environment.
#[expect(clippy::struct_excessive_bools, reason = "each is a variable with the values 0 and 1")]
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaSettings {
    /// `WRAPPER_DISABLE`, or a setuid program: passes all calls to the driver unchanged.
    pub(crate) disabled: bool,
    limits: Limits,
    /// `WRAPPER_DEFAULT=off`: there is no default limit.
    no_default: bool,
    /// File of a shared quota.
    pub(crate) shared: Option<CString>,
    /// Assumed memory use of a context in bytes, for each GPU on which a process allocates.
    pub(crate) overhead: u64,
    pub(crate) log: Option<CString>,
    pub(crate) lie_nvml: bool,
    /// Whether managed memory is not counted.
    pub(crate) managed_free: bool,
    /// Whether all allocations are refused if the shared quota is not usable.
    pub(crate) fail_closed: bool,
    /// Descriptions of invalid variables.
    pub(crate) warnings: Vec<String>,
}

/// Limits by UUID, by ordinal, and for all GPUs. The most specific limit applies.
#[derive(Debug, Default, PartialEq, Eq)]
struct Limits {
    uuids: Vec<(Uuid, u64)>,
    ordinals: Vec<(u32, u64)>,
    general: Option<u64>,
}

/// A limit, and whether it is the default limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    pub(crate) by_default: bool,
}

/// Variable for the limit on every GPU, and prefix of the variables for one GPU.
pub(crate) const LIMIT: &str = "WRAPPER_MAX_MEMORY";
/// The same variable in `HAMi`, accepted as an alias.
const ALIAS: &str = "CUDA_DEVICE_MEMORY_LIMIT";

impl QuotaSettings {
    /// Returns settings that pass all calls to the driver.
    pub(crate) fn disabled() -> Self {
        Self { disabled: true, ..Self::default() }
    }

    /// Reads the settings from an environment.
    pub(crate) fn read<'a>(variables: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut settings = Self::default();
        let (mut alias, mut alias_warnings) = (Limits::default(), Vec::new());
        for (name, value) in variables {
            if let Some(rest) = name.strip_prefix(LIMIT) {
                settings.limits.take((name, rest, value), limit(value), &mut settings.warnings);
            } else if let Some(rest) = name.strip_prefix(ALIAS) {
                // In HAMi, 0 means no limit.
                let limit = limit(value).map(|bytes| if bytes == 0 { UNLIMITED } else { bytes });
                alias.take((name, rest, value), limit, &mut alias_warnings);
            } else if let Some(rest) = name.strip_prefix("WRAPPER_") {
                settings.take((name, rest, value));
            }
        }
        if settings.limits == Limits::default() {
            settings.limits = alias;
            settings.warnings.append(&mut alias_warnings);
        }
        settings
    }

    fn take(&mut self, (name, rest, value): (&str, &str, &str)) {
        match rest {
            "DISABLE" => self.disabled = self.parse_switch(name, value),
            "LIE_NVML" => self.lie_nvml = self.parse_switch(name, value),
            "FAIL_CLOSED" => self.fail_closed = self.parse_switch(name, value),
            "COUNT_MANAGED" => self.managed_free = value == "0",
            "DEFAULT" => {
                self.no_default = value == "off";
                if !["on", "off"].contains(&value) {
                    self.warnings.push(format!("{name}={value}: must be on or off"));
                }
            }
            "CONTEXT_OVERHEAD" => match bytes(value) {
                Some(bytes) => self.overhead = bytes,
                None => self.warnings.push(format!("{name}={value}: not a size; using 0")),
            },
            "SHARED" => self.shared = self.path(name, value),
            "LOG" => self.log = self.path(name, value),
            // The variable belongs to another program.
            _ => {}
        }
    }

    fn parse_switch(&mut self, name: &str, value: &str) -> bool {
        if !["0", "1"].contains(&value) {
            self.warnings.push(format!("{name}={value}: must be 0 or 1; using 0"));
        }
        value == "1"
    }

    /// Parses an absolute path. A relative path is rejected, because it would depend on the working
    /// directory.
    fn path(&mut self, name: &str, value: &str) -> Option<CString> {
        let path = CString::new(value).ok().filter(|_| value.starts_with('/'));
        if path.is_none() {
            self.warnings.push(format!("{name}={value}: not an absolute path"));
        }
        path
    }

    /// Returns the limit on a GPU for one process.
    pub(crate) fn limit(&self, ordinal: Option<u32>, uuid: Option<Uuid>) -> Limit {
        let limits = &self.limits;
        let by_uuid = limits.uuids.iter().find(|(of, _)| Some(*of) == uuid).map(|found| found.1);
        let by_ordinal = || limits.ordinals.iter().find(|(of, _)| Some(*of) == ordinal).map(|found| found.1);
        match by_uuid.or_else(by_ordinal).or(limits.general) {
            Some(bytes) => Limit { bytes, by_default: false },
            None if self.no_default => Limit { bytes: UNLIMITED, by_default: false },
            None => Limit { bytes: DEFAULT, by_default: true },
        }
    }
}

impl Limits {
    fn take(
        &mut self,
        (name, rest, value): (&str, &str, &str),
        limit: Option<u64>,
        warnings: &mut Vec<String>,
    ) {
        let limit = limit.unwrap_or_else(|| {
            warnings.push(format!("{name}={value:?}: not a size; using {DEFAULT} bytes"));
            DEFAULT
        });
        let gpu = rest.strip_prefix('_');
        if rest.is_empty() {
            self.general = Some(limit);
        } else if let Some(ordinal) = gpu.and_then(|gpu| gpu.parse().ok()) {
            self.ordinals.push((ordinal, limit));
        } else if let Some(uuid) = gpu.and_then(uuid) {
            self.uuids.push((uuid, limit));
        } else {
            warnings.push(format!("{name}: not the number or UUID of a GPU"));
        }
    }
}

/// Parses a UUID such as `GPU_0123abcd_4567_…` or `MIG_…`. It contains underscores because the names of
/// variables cannot contain dashes. Dashes, as printed by `nvidia-smi -L`, are accepted too.
pub(crate) fn uuid(text: &str) -> Option<Uuid> {
    let digits = text.get(4..).filter(|_| text.starts_with("GPU") || text.starts_with("MIG"))?;
    let digits: Vec<u32> = digits
        .chars()
        .filter(|char| !['_', '-'].contains(char))
        .map(|char| char.to_digit(16))
        .collect::<Option<_>>()?;
    let bytes = digits.chunks_exact(2).map(|pair| match pair {
        [high, low] => u8::try_from((high << 4) | low).ok(),
        _ => None,
    });
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok().filter(|_| digits.len() == 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> QuotaSettings {
        QuotaSettings::read(variables.iter().copied())
    }

    #[test]
    fn most_specific_limit_applies() {
        let settings = read(&[
            ("WRAPPER_MAX_MEMORY", "1"),
            ("WRAPPER_MAX_MEMORY_1", "2"),
            ("WRAPPER_MAX_MEMORY_GPU_00000000_0000_4000_8000_000000000002", "3"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "9"),
        ]);
        let second = uuid("GPU-00000000-0000-4000-8000-000000000002");
        assert!(second.is_some());
        for (ordinal, uuid, expected) in [
            (Some(0), None, 1),
            (Some(1), None, 2),
            (Some(1), second, 3),
            (Some(7), second, 3),
            (None, Some([9; 16]), 1),
        ] {
            let limit = settings.limit(ordinal, uuid);
            assert_eq!(limit, Limit { bytes: expected, by_default: false }, "{ordinal:?} {uuid:?}");
        }
        assert_eq!(settings.warnings, [""; 0]);
    }

    #[test]
    fn missing_limit_means_the_default_or_its_alias() {
        let default = Limit { bytes: DEFAULT, by_default: true };
        let off = Limit { bytes: UNLIMITED, by_default: false };
        for (variables, expected) in [
            (&[][..], default),
            (&[("WRAPPER_DEFAULT", "on")], default),
            (&[("WRAPPER_DEFAULT", "off")], off),
            (&[("CUDA_DEVICE_MEMORY_LIMIT", "1g")], Limit { bytes: 1 << 30, by_default: false }),
            (&[("CUDA_DEVICE_MEMORY_LIMIT_0", "2048m")], Limit { bytes: 2 << 30, by_default: false }),
            (&[("CUDA_DEVICE_MEMORY_LIMIT", "0")], off),
            (&[("WRAPPER_MAX_MEMORY", "unlimited")], off),
            (&[("WRAPPER_MAX_MEMORY", "0")], Limit { bytes: 0, by_default: false }),
            (&[("WRAPPER_MAX_MEMORY_0", "0GiB")], Limit { bytes: 0, by_default: false }),
            (&[("WRAPPER_MAX_MEMORY_1", "5")], default),
        ] {
            assert_eq!(read(variables).limit(Some(0), None), expected, "{variables:?}");
        }
    }

    #[test]
    fn invalid_value_warns_and_keeps_the_default() {
        for (name, value) in [
            ("WRAPPER_MAX_MEMORY", "abc"),
            ("WRAPPER_MAX_MEMORY", ""),
            ("WRAPPER_MAX_MEMORY", "-1"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "much"),
            ("WRAPPER_MAX_MEMORY_0", "1q"),
        ] {
            let settings = read(&[(name, value)]);
            assert_eq!(settings.limit(Some(0), None).bytes, DEFAULT, "{name}={value}");
            assert_eq!(settings.warnings.len(), 1, "{name}={value}");
        }
        for (name, value) in [
            ("WRAPPER_MAX_MEMORY_GPU_12", "1"),
            ("WRAPPER_MAX_MEMORYX", "1"),
            ("WRAPPER_DISABLE", "yes"),
            ("WRAPPER_SHARED", "relative"),
            ("WRAPPER_LOG", ""),
            ("WRAPPER_DEFAULT", "0"),
            ("WRAPPER_CONTEXT_OVERHEAD", "some"),
        ] {
            let settings = read(&[(name, value)]);
            assert_eq!(settings.warnings.len(), 1, "{name}={value}");
            let expected = QuotaSettings { warnings: settings.warnings.clone(), ..QuotaSettings::default() };
            assert_eq!(settings, expected, "{name}={value}");
        }
    }

    #[test]
    fn switches_are_read() {
        let settings = read(&[
            ("PATH", "/bin"),
            ("WRAPPER_OF_ANOTHER_PROGRAM", "x"),
            ("WRAPPER_DISABLE", "1"),
            ("WRAPPER_LIE_NVML", "1"),
            ("WRAPPER_COUNT_MANAGED", "0"),
            ("WRAPPER_FAIL_CLOSED", "1"),
            ("WRAPPER_CONTEXT_OVERHEAD", "500MiB"),
            ("WRAPPER_SHARED", "/run/bailiff/quota/a"),
            ("WRAPPER_LOG", "/tmp/log"),
        ]);
        assert_eq!(settings.warnings, [""; 0]);
        assert!(settings.disabled && settings.lie_nvml && settings.managed_free && settings.fail_closed);
        assert_eq!(settings.overhead, 500 << 20);
        assert_eq!(settings.shared.as_deref(), Some(c"/run/bailiff/quota/a"));
        assert_eq!(settings.log.as_deref(), Some(c"/tmp/log"));
    }

    #[test]
    fn uuids_are_parsed() {
        let expected: Option<Uuid> = Some(std::array::from_fn(|at| u8::try_from(at * 17).unwrap_or(0)));
        for (text, expected) in [
            ("GPU-00112233-4455-6677-8899-aabbccddeeff", expected),
            ("MIG_00112233_4455_6677_8899_AABBCCDDEEFF", expected),
            ("GPU-00112233-4455-6677-8899-aabbccddeef", None),
            ("GPU-00112233-4455-6677-8899-aabbccddeeffa", None),
            ("GPU-00112233-4455-6677-8899-aabbccddeeff00", None),
            ("00112233-4455-6677-8899-aabbccddeeff", None),
            ("GPU", None),
            ("GPU_x", None),
        ] {
            assert_eq!(uuid(text), expected, "{text}");
        }
    }
}
