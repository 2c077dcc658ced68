//! Xid errors, heard on a thread of its own, since waiting for one blocks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;

/// One wait; its end is only a chance to notice that a GPU is lost.
const WAIT: Duration = Duration::from_secs(5);

/// What was heard and not yet told.
pub(super) struct Events(Arc<Mutex<Vec<(String, u64)>>>);

impl Events {
    /// Begins to listen to these GPUs.
    pub(super) fn start(nvml: &'static Nvml, indexes: Vec<u32>) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ours = Self(Arc::clone(&heard));
        std::thread::spawn(move || {
            if let Ok(set) = register(nvml, &indexes) {
                listen(&set, &heard);
            }
        });
        ours
    }

    /// The Xid errors of one GPU since it was asked last.
    pub(super) fn take(&self, uuid: &str) -> Vec<u64> {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ours, others) = heard.drain(..).partition(|(of, _)| of == uuid);
        *heard = others;
        ours.into_iter().map(|(_, xid)| xid).collect()
    }
}

fn register(nvml: &'static Nvml, indexes: &[u32]) -> Result<EventSet<'static>, NvmlError> {
    let mut set = nvml.create_event_set()?;
    for index in indexes {
        let Ok(device) = nvml.device_by_index(*index) else { continue };
        let supported = device.supported_event_types().unwrap_or_else(|_| EventTypes::empty());
        if supported.contains(EventTypes::CRITICAL_XID_ERROR) {
            // A refusal frees the set with all that is in it, so it ends the listening.
            set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error)?;
        }
    }
    Ok(set)
}

fn listen(set: &EventSet<'_>, heard: &Mutex<Vec<(String, u64)>>) {
    let milliseconds = u32::try_from(WAIT.as_millis()).unwrap_or(u32::MAX);
    loop {
        match set.wait(milliseconds) {
            Ok(event) => {
                let xid = match event.event_data {
                    Some(XidError::Value(xid)) => xid,
                    Some(XidError::Unknown) | None => 0,
                };
                let Ok(uuid) = event.device.uuid() else { continue };
                heard.lock().unwrap_or_else(PoisonError::into_inner).push((uuid, xid));
            }
            Err(NvmlError::Timeout) => {}
            // A lost GPU is told at once, every time: ask again no faster than the wait would have been.
            Err(NvmlError::GpuLost) => std::thread::park_timeout(WAIT),
            Err(_) => return,
        }
    }
}
