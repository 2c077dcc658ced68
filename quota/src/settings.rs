//! What the environment asks for: limits, where they are shared, and how much is told. Pure: variables come in.

use std::ffi::CString;

use bailiff_size::{UNLIMITED, bytes, limit};

/// What holds where nothing is asked for, as in the library that this one succeeds.
pub(crate) const DEFAULT: u64 = 4_217_928_960;

/// A GPU's name, by which all processes call it.
pub(crate) type Uuid = [u8; 16];

/// What the environment asks for.
#[expect(clippy::struct_excessive_bools, reason = "each is a variable that says yes or no")]
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Every call goes through untouched.
    pub(crate) disabled: bool,
    limits: Limits,
    /// `WRAPPER_DEFAULT=off`
    no_default: bool,
    /// The file of a quota that processes share.
    pub(crate) shared: Option<CString>,
    /// What a context is taken to use itself, for each GPU that a process allocates on.
    pub(crate) overhead: u64,
    pub(crate) log: Option<CString>,
    pub(crate) lie_nvml: bool,
    /// Managed memory is not counted.
    pub(crate) managed_free: bool,
    /// Where the shared quota cannot be used nothing is granted.
    pub(crate) fail_closed: bool,
    /// What could not be understood.
    pub(crate) complaints: Vec<String>,
}

/// Limits by what names a GPU, the most specific first.
#[derive(Debug, Default, PartialEq, Eq)]
struct Limits {
    uuids: Vec<(Uuid, u64)>,
    ordinals: Vec<(u32, u64)>,
    general: Option<u64>,
}

/// A limit, and whether anybody asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    pub(crate) by_default: bool,
}

/// The variable of the limit of every GPU, with which those of one GPU begin.
pub(crate) const LIMIT: &str = "WRAPPER_MAX_MEMORY";
/// That of `HAMi`, for whoever comes from there.
const ALIAS: &str = "CUDA_DEVICE_MEMORY_LIMIT";

impl Settings {
    /// Understands an environment.
    pub(crate) fn read<'a>(variables: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut settings = Self::default();
        let (mut alias, mut of_alias) = (Limits::default(), Vec::new());
        for (name, value) in variables {
            if let Some(rest) = name.strip_prefix(LIMIT) {
                settings.limits.take((name, rest, value), limit(value), &mut settings.complaints);
            } else if let Some(rest) = name.strip_prefix(ALIAS) {
                // Its 0 is no limit.
                let limit = limit(value).map(|bytes| if bytes == 0 { UNLIMITED } else { bytes });
                alias.take((name, rest, value), limit, &mut of_alias);
            } else if let Some(rest) = name.strip_prefix("WRAPPER_") {
                settings.take((name, rest, value));
            }
        }
        if settings.limits == Limits::default() {
            settings.limits = alias;
            settings.complaints.append(&mut of_alias);
        }
        settings
    }

    fn take(&mut self, (name, rest, value): (&str, &str, &str)) {
        match rest {
            "DISABLE" => self.disabled = self.yes(name, value),
            "LIE_NVML" => self.lie_nvml = self.yes(name, value),
            "FAIL_CLOSED" => self.fail_closed = self.yes(name, value),
            "COUNT_MANAGED" => self.managed_free = value == "0",
            "DEFAULT" => {
                self.no_default = value == "off";
                if !["on", "off"].contains(&value) {
                    self.complaints.push(format!("{name}={value}: neither on nor off"));
                }
            }
            "CONTEXT_OVERHEAD" => match bytes(value) {
                Some(bytes) => self.overhead = bytes,
                None => self.complaints.push(format!("{name}={value}: no number of bytes; 0 is taken")),
            },
            "SHARED" => self.shared = self.path(name, value),
            "LOG" => self.log = self.path(name, value),
            // Somebody else's.
            _ => {}
        }
    }

    fn yes(&mut self, name: &str, value: &str) -> bool {
        if !["0", "1"].contains(&value) {
            self.complaints.push(format!("{name}={value}: neither 0 nor 1; 0 is taken"));
        }
        value == "1"
    }

    /// A path that means the same wherever the program goes.
    fn path(&mut self, name: &str, value: &str) -> Option<CString> {
        let path = CString::new(value).ok().filter(|_| value.starts_with('/'));
        if path.is_none() {
            self.complaints.push(format!("{name}={value}: no absolute path"));
        }
        path
    }

    /// The limit of a GPU for one process.
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
        complaints: &mut Vec<String>,
    ) {
        let limit = limit.unwrap_or_else(|| {
            complaints.push(format!("{name}={value:?}: no number of bytes; {DEFAULT} bytes are taken"));
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
            complaints.push(format!("{name}: names no GPU by number or UUID"));
        }
    }
}

/// `GPU_0123abcd_4567_…` or `MIG_…`: a variable's name has no minus signs. Those of `nvidia-smi -L` are taken too.
pub(crate) fn uuid(text: &str) -> Option<Uuid> {
    let digits = text.get(4..).filter(|_| text.starts_with("GPU") || text.starts_with("MIG"))?;
    let digits: Vec<u32> = digits
        .chars()
        .filter(|letter| !['_', '-'].contains(letter))
        .map(|letter| letter.to_digit(16))
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

    fn read(variables: &[(&str, &str)]) -> Settings {
        Settings::read(variables.iter().copied())
    }

    #[test]
    fn the_most_specific_limit_wins() {
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
        assert_eq!(settings.complaints, [""; 0]);
    }

    #[test]
    fn without_a_limit_the_old_one_holds() {
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
    fn what_makes_no_sense_is_told_and_is_no_licence() {
        for (name, value) in [
            ("WRAPPER_MAX_MEMORY", "abc"),
            ("WRAPPER_MAX_MEMORY", ""),
            ("WRAPPER_MAX_MEMORY", "-1"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "much"),
            ("WRAPPER_MAX_MEMORY_0", "1q"),
        ] {
            let settings = read(&[(name, value)]);
            assert_eq!(settings.limit(Some(0), None).bytes, DEFAULT, "{name}={value}");
            assert_eq!(settings.complaints.len(), 1, "{name}={value}");
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
            assert_eq!(settings.complaints.len(), 1, "{name}={value}");
            let told = Settings { complaints: settings.complaints.clone(), ..Settings::default() };
            assert_eq!(settings, told, "{name}={value}");
        }
    }

    #[test]
    fn switches() {
        let settings = read(&[
            ("PATH", "/bin"),
            ("WRAPPER_SOMEBODY_ELSES", "x"),
            ("WRAPPER_DISABLE", "1"),
            ("WRAPPER_LIE_NVML", "1"),
            ("WRAPPER_COUNT_MANAGED", "0"),
            ("WRAPPER_FAIL_CLOSED", "1"),
            ("WRAPPER_CONTEXT_OVERHEAD", "500MiB"),
            ("WRAPPER_SHARED", "/run/bailiff/quota/a"),
            ("WRAPPER_LOG", "/tmp/log"),
        ]);
        assert_eq!(settings.complaints, [""; 0]);
        assert!(settings.disabled && settings.lie_nvml && settings.managed_free && settings.fail_closed);
        assert_eq!(settings.overhead, 500 << 20);
        assert_eq!(settings.shared.as_deref(), Some(c"/run/bailiff/quota/a"));
        assert_eq!(settings.log.as_deref(), Some(c"/tmp/log"));
    }

    #[test]
    fn uuids() {
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
