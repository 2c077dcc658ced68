//! The gate that every call passes: it checks if the function exists, applies faults, and finds the device for the
//! handle.

use std::ptr;
use std::sync::Arc;

use crate::clock;
use crate::code::{Answer, Code};
use crate::edge::Handle;
use crate::machine::{Gpu, Init, Instance, MOST_GPUS, MOST_INSTANCES, Machine, Unit};
use crate::scenario::Lost;
use crate::state;

/// A call that has passed the gate, and its device.
pub(crate) struct Call<'machine> {
    pub(crate) machine: &'machine Machine,
    /// The device, or the device that contains the instance.
    pub(crate) whole: &'machine Gpu,
    pub(crate) instance: Option<&'machine Instance>,
}

impl<'machine> Call<'machine> {
    /// Returns the device, for calls that are invalid on an instance.
    pub(crate) fn gpu(&self) -> Result<&'machine Gpu, Code> {
        if self.instance.is_some() { Err(Code::NOT_SUPPORTED) } else { Ok(self.whole) }
    }

    /// Returns the device, for calls that a device does not support while MIG is on.
    pub(crate) fn unsplit(&self) -> Result<&'machine Gpu, Code> {
        if self.whole.instances.is_some() { Err(Code::NOT_SUPPORTED) } else { Ok(self.whole) }
    }

    /// Returns the device or the instance.
    pub(crate) fn unit(&self) -> &'machine Unit {
        self.instance.map_or(&self.whole.unit, |instance| &instance.unit)
    }
}

/// The device, and possibly the instance, to which a handle refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) gpu: u32,
    pub(crate) instance: Option<u32>,
}

/// A place in memory with a unique address, which is used as a handle.
#[repr(align(16))]
pub(crate) struct Place {
    _unused: u8,
}

impl Place {
    pub(crate) const NEW: Self = Self { _unused: 0 };

    pub(crate) fn handle(&'static self) -> Handle {
        ptr::from_ref(self).cast()
    }
}

const PLACES: usize = 1 + MOST_INSTANCES as usize;
static TABLE: [[Place; PLACES]; MOST_GPUS] = [const { [const { Place::NEW }; PLACES] }; MOST_GPUS];

impl Target {
    /// Returns the handle of this device, or null if the device number is too high.
    pub(crate) fn handle(self) -> Handle {
        let row = TABLE.get(self.gpu as usize);
        let place = row.and_then(|row| row.get(self.instance.map_or(0, |index| 1 + index as usize)));
        place.map_or(ptr::null(), Place::handle)
    }

    /// Returns the device for which this handle was assigned.
    fn of(handle: Handle) -> Option<Self> {
        let offset = handle.addr().checked_sub(TABLE.as_ptr().addr())?;
        let place = u32::try_from(offset / size_of::<Place>()).ok()?;
        let places = MOST_INSTANCES + 1;
        let target = Self { gpu: place / places, instance: (place % places).checked_sub(1) };
        ptr::eq(target.handle(), handle).then_some(target)
    }
}

impl Machine {
    fn find(&self, target: Target) -> Option<(&Gpu, Option<&Instance>)> {
        let gpu = self.gpus.get(target.gpu as usize)?;
        let Some(index) = target.instance else { return Some((gpu, None)) };
        let instance = gpu.instances.iter().flatten().find(|instance| instance.index == index)?;
        Some((gpu, Some(instance)))
    }
}

/// Runs a call on a device.
pub(crate) fn on_device(function: &str, handle: Handle, act: impl FnOnce(&Call<'_>) -> Answer) -> Code {
    let named = Target::of(handle).ok_or(Code::INVALID_ARGUMENT);
    let outcome = admitted(function, |_| named.map(Some)).and_then(|machine| {
        let found = named.ok().and_then(|target| machine.find(target));
        let (whole, instance) = found.ok_or(Code::INVALID_ARGUMENT)?;
        let lost = whole.lost != Lost::Now(false);
        if lost { Err(Code::GPU_IS_LOST) } else { act(&Call { machine: &machine, whole, instance }) }
    });
    outcome.into()
}

/// Runs a call on the driver itself.
pub(crate) fn on_driver(function: &str, act: impl FnOnce(&Machine) -> Answer) -> Code {
    admitted(function, |_| Ok(None)).and_then(|machine| act(&machine)).into()
}

/// Runs a call that returns a device's handle, and applies the faults of this device.
pub(crate) fn look_up(
    function: &str,
    find: impl Fn(&Machine) -> Result<Target, Code>,
) -> Result<Handle, Code> {
    let machine = admitted(function, |machine| find(machine).map(Some))?;
    let target = find(&machine)?;
    let (whole, _) = machine.find(target).ok_or(Code::NOT_FOUND)?;
    if whole.lost == Lost::Now(true) { Err(Code::GPU_IS_LOST) } else { Ok(target.handle()) }
}

/// Runs a call that initializes the library.
pub(crate) fn initialize(function: &str) -> Code {
    loop {
        match passed(function, |_| Ok(None)) {
            Err(code) => return code,
            Ok(machine) => match machine.init {
                Init::Hangs => clock::pause(),
                Init::Answers(Err(code)) => return code,
                Init::Answers(Ok(())) => {
                    state::initialize();
                    return Code::SUCCESS;
                }
            },
        }
    }
}

fn admitted(
    function: &str,
    target: impl Fn(&Machine) -> Result<Option<Target>, Code>,
) -> Result<Arc<Machine>, Code> {
    if !state::is_initialized() {
        return Err(Code::UNINITIALIZED);
    }
    passed(function, target)
}

/// Applies the faults of the driver and of the device. Returns the machine that the scenario describes after
/// any delay.
fn passed(
    function: &str,
    target: impl Fn(&Machine) -> Result<Option<Target>, Code>,
) -> Result<Arc<Machine>, Code> {
    let mut dawdled = false;
    loop {
        let machine = state::machine().ok_or(Code::UNKNOWN)?;
        if machine.lacks(function) {
            return Err(Code::FUNCTION_NOT_FOUND);
        }
        let gpu = target(&machine)?.and_then(|target| machine.gpus.get(target.gpu as usize));
        let wrongs = [Some(&machine.wrong), gpu.map(|gpu| &gpu.wrong)];
        let mut wrongs = wrongs.into_iter().flatten();
        if wrongs.clone().any(|wrong| wrong.hangs(function)) {
            clock::pause();
            continue;
        }
        if let Some(long) = wrongs.clone().find_map(|wrong| wrong.delay(function)).filter(|_| !dawdled) {
            clock::dawdle(long);
            dawdled = true;
            continue;
        }
        return wrongs.find_map(|wrong| wrong.error(function)).map_or(Ok(machine.clone()), Err);
    }
}
