//! Event sets. An event on a registered device is delivered once to each set.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::abi::{EventData, NO_INSTANCE};
use crate::clock;
use crate::code::{Answer, Code};
use crate::edge::{Handle, Out, put, system_calls};
use crate::gate::{Place, Target};
use crate::machine::{Gpu, Machine};
use crate::scenario::Lost;
use crate::state;

/// `nvmlEventTypeXidCriticalError`
pub(crate) const XID: c_ulonglong = 8;
/// `nvmlEventMigConfigChange`
pub(crate) const MIG_CHANGE: c_ulonglong = 0x100;

system_calls! {
    nvmlEventSetCreate(_machine, set: Out<Handle>) { put(set, create()?) }
    nvmlEventSetFree(_machine, set: Handle) { with_slot(set, |slot| *slot = None) }
    nvmlEventSetWait(_machine, set: Handle, event: Out<EventData>, timeout: c_uint) { put(event, wait(set, timeout)?) }
    nvmlEventSetWait_v2(_machine, set: Handle, event: Out<EventData>, timeout: c_uint) {
        put(event, wait(set, timeout)?)
    }
}

/// Maximum number of sets at a time.
const MOST_SETS: usize = 64;
static PLACES: [Place; MOST_SETS] = [const { Place::NEW }; MOST_SETS];
static SETS: Mutex<[Option<Set>; MOST_SETS]> = Mutex::new([const { None }; MOST_SETS]);

/// The devices that are registered with a set, each with what was delivered.
#[derive(Default)]
struct Set {
    delivered: BTreeMap<u32, Delivered>,
}

/// Numbers of delivered events; `None` if the device is not registered for their kind.
#[derive(Default)]
struct Delivered {
    errors: Option<usize>,
    mig_changes: Option<u64>,
}

fn create() -> Result<Handle, Code> {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    let free = sets.iter_mut().zip(&PLACES).find(|(slot, _)| slot.is_none());
    let (slot, place) = free.ok_or(Code::INSUFFICIENT_RESOURCES)?;
    *slot = Some(Set::default());
    Ok(place.handle())
}

/// Registers a device with a set. Errors that the scenario already lists are delivered afterwards.
pub(crate) fn register(handle: Handle, gpu: u32, kinds: c_ulonglong) -> Answer {
    with_slot(handle, |slot| {
        let delivered = slot.get_or_insert_default().delivered.entry(gpu).or_default();
        if kinds & XID != 0 {
            delivered.errors.get_or_insert(0);
        }
        if kinds & MIG_CHANGE != 0 {
            delivered.mig_changes.get_or_insert(0);
        }
    })
}

fn with_slot<T>(handle: Handle, act: impl FnOnce(&mut Option<Set>) -> T) -> Result<T, Code> {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = sets.iter_mut().zip(&PLACES).find(|(_, place)| ptr::eq(place.handle(), handle));
    let (slot, _) = slot.filter(|(slot, _)| slot.is_some()).ok_or(Code::INVALID_ARGUMENT)?;
    Ok(act(slot))
}

fn wait(set: Handle, timeout: c_uint) -> Result<EventData, Code> {
    let end = clock::moment() + Duration::from_millis(u64::from(timeout));
    loop {
        let machine = state::machine().ok_or(Code::UNKNOWN)?;
        let undelivered = with_slot(set, |slot| slot.as_mut().map(|set| set.undelivered(&machine)))?;
        if let Some(outcome) = undelivered.flatten() {
            return outcome;
        }
        if clock::moment() >= end {
            return Err(Code::TIMEOUT);
        }
        clock::pause_for_events(end);
    }
}

impl Set {
    /// Returns the next undelivered event. If there is none and a device is lost, returns that
    /// error.
    fn undelivered(&mut self, machine: &Machine) -> Option<Result<EventData, Code>> {
        let mut lost = false;
        for (index, delivered) in &mut self.delivered {
            let Some(gpu) = machine.gpus.get(*index as usize) else { continue };
            let errors = &gpu.written.xid;
            if let Some(delivered) = &mut delivered.errors {
                *delivered = errors.len().min(*delivered);
                if let Some(xid) = errors.get(*delivered) {
                    *delivered += 1;
                    return Some(Ok(event(gpu, XID, *xid)));
                }
            }
            if let Some(delivered) = &mut delivered.mig_changes
                && *delivered < gpu.written.mig_changes
            {
                *delivered += 1;
                return Some(Ok(event(gpu, MIG_CHANGE, 0)));
            }
            lost |= gpu.lost != Lost::Now(false);
        }
        lost.then_some(Err(Code::GPU_IS_LOST))
    }
}

fn event(gpu: &Gpu, kind: c_ulonglong, data: u64) -> EventData {
    let device = Target { gpu: gpu.index, instance: None }.handle();
    EventData { device, kind, data, gi: NO_INSTANCE, ci: NO_INSTANCE }
}
