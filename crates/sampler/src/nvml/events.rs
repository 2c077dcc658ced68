//! Receives Xid errors and changes of the MIG instances of one GPU in a thread, because waiting for them blocks.

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

/// Events received but not yet reported.
#[derive(Debug, Default)]
struct Received {
    xids: Vec<u64>,
    mig_changed: bool,
}

/// Events of one GPU.
pub(super) struct Events {
    received: Arc<Mutex<Received>>,
    listener: JoinHandle<Result<Infallible, NvmlError>>,
}

impl Events {
    /// Starts listening. For a GPU without such events, the thread only sleeps.
    pub(super) fn start(nvml: &'static Nvml, device: Device<'static>) -> Self {
        let received = Arc::new(Mutex::new(Received::default()));
        let sink = Arc::clone(&received);
        let listener = std::thread::spawn(move || listen(nvml, &device, &sink));
        Self { received, listener }
    }

    /// Returns the Xid errors since the last call.
    pub(super) fn take_xids(&self) -> Vec<u64> {
        std::mem::take(&mut self.received.lock().unwrap_or_else(PoisonError::into_inner).xids)
    }

    /// Returns whether MIG instances were created or destroyed since the last call.
    pub(super) fn take_mig_change(&self) -> bool {
        std::mem::take(&mut self.received.lock().unwrap_or_else(PoisonError::into_inner).mig_changed)
    }

    /// Returns whether listening has ended because of an error.
    pub(super) fn failed(&self) -> bool {
        self.listener.is_finished()
    }
}

fn listen(
    nvml: &'static Nvml,
    device: &Device<'static>,
    sink: &Mutex<Received>,
) -> Result<Infallible, NvmlError> {
    let supported = device.supported_event_types()?;
    let xid = supported & EventTypes::CRITICAL_XID_ERROR;
    if xid.is_empty() {
        loop {
            std::thread::park();
        }
    }
    let register = |events| {
        let set = nvml.create_event_set()?;
        device.register_events(events, set).map_err(|error| error.error)
    };
    // Without the second event, Xid errors are still received.
    let set = register(xid | supported & EventTypes::MIG_CONFIG_CHANGE).or_else(|_| register(xid))?;
    let milliseconds = u32::try_from(WAIT.as_millis()).unwrap_or(u32::MAX);
    loop {
        match set.wait(milliseconds) {
            Ok(event) => {
                let mut received = sink.lock().unwrap_or_else(PoisonError::into_inner);
                match event.event_data {
                    _ if event.event_type == EventTypes::MIG_CONFIG_CHANGE => received.mig_changed = true,
                    Some(XidError::Value(xid)) => received.xids.push(xid),
                    Some(XidError::Unknown) | None => received.xids.push(0),
                }
            }
            Err(NvmlError::Timeout) => {}
            // For a lost GPU, the call fails at once. Pause for as long as it would have waited.
            Err(NvmlError::GpuLost) => std::thread::park_timeout(WAIT),
            Err(error) => return Err(error),
        }
    }
}
