//! The kinds of events that a device supports, and its registration with an event set.

use std::ffi::c_ulonglong;

use crate::code::Code;
use crate::edge::{Handle, Out, device_calls, put};
use crate::event_sets;

/// Memory errors, performance state, Xid, clocks, MIG configuration. Scenarios only contain Xid errors and changes of the
/// MIG configuration.
const SUPPORTED: c_ulonglong = 1 | 2 | 4 | event_sets::XID | 16 | event_sets::MIG_CHANGE;

device_calls! {
    nvmlDeviceGetSupportedEventTypes(call, kinds: Out<c_ulonglong>) { put(kinds, call.gpu().map(|_| SUPPORTED)?) }
    nvmlDeviceRegisterEvents(call, kinds: c_ulonglong, set: Handle) {
        if kinds & !SUPPORTED != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        event_sets::register(set, call.gpu()?.index, kinds)
    }
}
