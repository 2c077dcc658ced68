//! The gate of every call: whether the driver has the function, which faults apply, which device the handle names.

use std::ptr;
use std::sync::Arc;

use crate::clock;
use crate::code::{Answer, Code};
use crate::edge::Handle;
use crate::machine::{Gpu, Init, Instance, MOST_GPUS, MOST_INSTANCES, Machine, Unit};
use crate::scenario::Lost;
use crate::state;

/// A call that the gate let through, and the device that it is on.
pub(crate) struct Call<'machine> {
    pub(crate) machine: &'machine Machine,
    /// The device, or the one that the instance is part of.
    pub(crate) whole: &'machine Gpu,
    pub(crate) instance: Option<&'machine Instance>,
}

impl<'machine> Call<'machine> {
    /// The device, for calls that are invalid for an instance.
    pub(crate) fn gpu(&self) -> Result<&'machine Gpu, Code> {
        if self.instance.is_some() { Err(Code::NOT_SUPPORTED) } else { Ok(self.whole) }
    }

    /// The device, for calls that a device does not support while it is split into instances.
    pub(crate) fn unsplit(&self) -> Result<&'machine Gpu, Code> {
        if self.whole.instances.is_some() { Err(Code::NOT_SUPPORTED) } else { Ok(self.whole) }
    }

    /// The device or the instance.
    pub(crate) fn unit(&self) -> &'machine Unit {
        self.instance.map_or(&self.whole.unit, |instance| &instance.unit)
    }
}

/// Which device a handle names, and which of its instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) gpu: u32,
    pub(crate) instance: Option<u32>,
}

/// A place in memory that no two things share; its address is a handle.
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
    /// The handle of this device; null if no machine can have it.
    pub(crate) fn handle(self) -> Handle {
        let row = TABLE.get(self.gpu as usize);
        let place = row.and_then(|row| row.get(self.instance.map_or(0, |index| 1 + index as usize)));
        place.map_or(ptr::null(), Place::handle)
    }

    /// The device that this handle was given out for.
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

/// A call on a device.
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

/// A call on the driver itself.
pub(crate) fn on_driver(function: &str, act: impl FnOnce(&Machine) -> Answer) -> Code {
    admitted(function, |_| Ok(None)).and_then(|machine| act(&machine)).into()
}

/// A call that asks for the handle of a device; it meets the faults of the device that it finds.
pub(crate) fn look_up(
    function: &str,
    find: impl Fn(&Machine) -> Result<Target, Code>,
) -> Result<Handle, Code> {
    let machine = admitted(function, |machine| find(machine).map(Some))?;
    let target = find(&machine)?;
    let (whole, _) = machine.find(target).ok_or(Code::NOT_FOUND)?;
    if whole.lost == Lost::Now(true) { Err(Code::GPU_IS_LOST) } else { Ok(target.handle()) }
}

/// A call that initializes the library.
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

/// Meets the faults of the driver and of the device, and gives the machine as it is after the waiting.
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
