//! Receives Xid errors of one GPU in a thread, because waiting for them blocks.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// Maximum duration of one wait. The timeout only serves to detect a lost GPU.
const WAIT: Duration = Duration::from_secs(5);

/// Xid errors received but not yet reported.
pub(super) struct Events {
    received: Arc<Mutex<Vec<u64>>>,
    listener: JoinHandle<Result<Infallible, NvmlError>>,
}

impl Events {
    /// Starts listening. For a GPU without such events, the thread only sleeps.
    pub(super) fn start(nvml: &'static Nvml, device: Device<'static>) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&received);
        let listener = std::thread::spawn(move || listen(nvml, &device, &sink));
        Self { received, listener }
    }

    /// Returns the Xid errors since the last call.
    pub(super) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.received.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether listening has ended because of an error.
    pub(super) fn failed(&self) -> bool {
        self.listener.is_finished()
    }
}

fn listen(
    nvml: &'static Nvml,
    device: &Device<'static>,
    sink: &Mutex<Vec<u64>>,
) -> Result<Infallible, NvmlError> {
    if !device.supported_event_types()?.contains(EventTypes::CRITICAL_XID_ERROR) {
        loop {
            std::thread::park();
        }
    }
    let set = nvml.create_event_set()?;
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error)?;
    let milliseconds = u32::try_from(WAIT.as_millis()).unwrap_or(u32::MAX);
    loop {
        match set.wait(milliseconds) {
            Ok(event) => {
                let xid = match event.event_data {
                    Some(XidError::Value(xid)) => xid,
                    Some(XidError::Unknown) | None => 0,
                };
                sink.lock().unwrap_or_else(PoisonError::into_inner).push(xid);
            }
            Err(NvmlError::Timeout) => {}
            // For a lost GPU, the call fails at once. Pause for as long as it would have waited.
            Err(NvmlError::GpuLost) => std::thread::park_timeout(WAIT),
            Err(error) => return Err(error),
        }
    }
}
