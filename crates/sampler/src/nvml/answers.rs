//! Converts driver results to values: what is not offered is absent, and other errors are counted as gaps.

use bailiff_snapshot::{Gap, Gaps};
use nvml_wrapper::error::NvmlError;

use super::not_offered;
use super::plausible::{self, Figure, Most};

/// Converts driver results to values, or to counted gaps, unless the whole device is lost.
pub(super) struct Answers<'a> {
    pub(super) gaps: &'a mut Gaps,
}

impl Answers<'_> {
    pub(super) fn of<T>(&mut self, answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
        gap(answer, Gap::Telemetry, self.gaps)
    }

    pub(super) fn figure<T: Figure>(
        &mut self,
        answer: Result<T, NvmlError>,
        most: Most,
    ) -> Result<Option<T>, NvmlError> {
        Ok(plausible::figure(self.of(answer)?, most, self.gaps))
    }
}

/// Returns a value, or `None` and a gap of this kind.
pub(super) fn gap<T>(
    answer: Result<T, NvmlError>,
    kind: Gap,
    gaps: &mut Gaps,
) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::GpuLost) => Err(NvmlError::GpuLost),
        Err(error) => {
            if !not_offered(&error) && !matches!(error, NvmlError::InvalidArg) {
                gaps.count(kind);
            }
            Ok(None)
        }
    }
}
