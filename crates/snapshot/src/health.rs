//! Health of a GPU as the driver reports it, and the classes of Xid errors.

use serde::{Deserialize, Serialize};

crate::label_values! {
/// What a GPU needs to work again (`nvmlDeviceGpuRecoveryAction_t`). The positions are the driver's numbers.
pub enum RecoveryAction {
    /// Nothing.
    None = "none",
    /// Reset the GPU.
    GpuReset = "gpu_reset",
    /// Reboot the node.
    NodeReboot = "node_reboot",
    /// Stop work between GPUs.
    DrainP2p = "drain_p2p",
    /// Stop work between GPUs, then reset the GPU.
    DrainAndReset = "drain_and_reset",
    /// Recover the IMEX domain.
    RecoverImexDomain = "recover_imex_domain",
    /// Reset the bus of the GPU.
    BusReset = "bus_reset",
    /// Reboot the system.
    SystemReboot = "system_reboot",
    /// An action that this version does not know.
    Other = "other",
}
}

impl RecoveryAction {
    /// Returns the action with the driver's number.
    pub fn of(number: u64) -> Self {
        let position = usize::try_from(number).ok();
        position.and_then(|position| Self::ALL.get(position).copied()).unwrap_or(Self::Other)
    }

    /// Returns what to do; `None` if nothing is needed.
    pub const fn words(self) -> Option<&'static str> {
        Some(match self {
            Self::None => return None,
            Self::GpuReset => "the GPU needs a reset: end its processes, then nvidia-smi --gpu-reset -i GPU",
            Self::NodeReboot | Self::SystemReboot => {
                "the GPU needs a reboot of the node: drain the node, then reboot"
            }
            Self::DrainP2p => "work between GPUs must stop: end the processes that use several GPUs",
            Self::DrainAndReset => {
                "the GPU needs a reset: end the processes that use several GPUs, then nvidia-smi --gpu-reset -i GPU"
            }
            Self::RecoverImexDomain => "the IMEX domain must be recovered: see nvidia-imex-ctl -N",
            Self::BusReset => {
                "the GPU needs a reset of its PCIe bus: drain the node, then reset the bus or reboot"
            }
            Self::Other => "the GPU needs an action that this version does not know: see nvidia-smi -q",
        })
    }
}

crate::label_values! {
/// Why the clocks of a GPU are reduced, other than by settings or because the GPU is idle.
pub enum ClockEvent {
    /// Power limit.
    SwPowerCap = "sw_power_cap",
    /// Hardware slowdown: temperature, power brake or power supply.
    HwSlowdown = "hw_slowdown",
    /// Temperature, reduced by the driver.
    SwThermal = "sw_thermal",
    /// Temperature, reduced by the hardware.
    HwThermal = "hw_thermal",
    /// The power supply requested it.
    PowerBrake = "power_brake",
    /// Reliability.
    Reliability = "reliability",
    /// A reason that this version does not name.
    Other = "other",
}
}

impl ClockEvent {
    /// Returns the bits in the driver's mask (`nvmlClocksEventReasons`).
    const fn bits(self) -> u64 {
        match self {
            Self::SwPowerCap => 0x4,
            Self::HwSlowdown => 0x8,
            Self::SwThermal => 0x20,
            Self::HwThermal => 0x40,
            Self::PowerBrake => 0x80,
            Self::Reliability => 0x400,
            // All but these, 0x1 (idle), 0x2 (application clocks) and 0x100 (clocks for a display).
            Self::Other => !0x5ef,
        }
    }

    /// Returns the events in the driver's mask.
    pub fn of(mask: u64) -> Vec<Self> {
        Self::ALL.into_iter().filter(|event| mask & event.bits() != 0).collect()
    }
}

/// Counts of corrected and of uncorrected errors; `None` if not reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCounts {
    /// Corrected errors.
    pub corrected: Option<u64>,
    /// Uncorrected errors.
    pub uncorrected: Option<u64>,
}

/// Health of a whole GPU; `None` if not reported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// What the GPU needs to work again.
    pub recovery_action: Option<RecoveryAction>,
    /// ECC errors since the driver was loaded.
    pub ecc: ErrorCounts,
    /// Why the clocks are reduced.
    pub clock_events: Option<Vec<ClockEvent>>,
    /// State of defective memory.
    pub memory: MemoryHealth,
}

/// Defective memory of a GPU that was replaced or retired. It changes rarely, and is read once a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryHealth {
    /// Remapped rows, by cause.
    pub remapped_rows: ErrorCounts,
    /// Whether a row will be remapped at the next reset.
    pub remap_pending: Option<bool>,
    /// Whether a row could not be remapped.
    pub remap_failed: Option<bool>,
    /// Retired pages, by cause; only before Ampere, which remaps rows.
    pub retired_pages: ErrorCounts,
}

crate::label_values! {
/// What an Xid error requires, by NVIDIA's catalogue.
pub enum XidClass {
    /// Caused by an application, or limited to one: restart the application.
    Application = "application",
    /// Reset the GPU.
    Reset = "reset",
    /// Reboot the node.
    Reboot = "reboot",
    /// Check the links between GPUs.
    Fabric = "fabric",
    /// Check the hardware.
    Hardware = "hardware",
    /// No action is needed.
    NoAction = "no_action",
    /// A process was ended while it used the GPU, for example by SIGKILL.
    Cleanup = "cleanup",
    /// Reports a state.
    Informational = "informational",
    /// Not in the catalogue, or its action depends on other data.
    Unclear = "unclear",
}
}

impl XidClass {
    /// Returns the class of an Xid.
    pub const fn of(xid: u64) -> Self {
        match xid {
            8
            | 11
            | 13
            | 25
            | 31
            | 39..=41
            | 60
            | 68..=72
            | 75..=77
            | 80
            | 82..=86
            | 88
            | 89
            | 94
            | 96..=105
            | 126..=135
            | 139 => Self::Application,
            46 | 62 | 64 | 95 | 109 | 110 | 119 | 120 | 136 | 140 | 143 | 155 | 156 | 158 => Self::Reset,
            79 | 151 => Self::Reboot,
            74 | 144..=150 => Self::Fabric,
            32 | 48 | 54 => Self::Hardware,
            14 | 37 | 38 | 43 | 44 | 63 | 66 | 67 | 92 | 93 | 106 | 107 | 121 | 137 | 141 | 157 | 160
            | 161 => Self::NoAction,
            45 => Self::Cleanup,
            78 | 154 => Self::Informational,
            _ => Self::Unclear,
        }
    }

    /// Returns the class as text.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Application => "an application's error",
            Self::Reset => "the GPU needs a reset",
            Self::Reboot => "the node needs a reboot",
            Self::Fabric => "check NVLink",
            Self::Hardware => "check the hardware",
            Self::NoAction => "no action needed",
            Self::Cleanup => "a process was ended",
            Self::Informational => "information",
            Self::Unclear => "see NVIDIA's catalogue",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn recovery_actions_have_the_drivers_numbers() {
        let names =
            ["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain"];
        for (number, name) in
            (0..).zip(names.into_iter().chain(["bus_reset", "system_reboot", "other", "other"]))
        {
            let action = RecoveryAction::of(number);
            assert_eq!((action.name(), action.words().is_none()), (name, number == 0), "{number}");
        }
        assert_eq!(RecoveryAction::of(u64::MAX), RecoveryAction::Other);
    }

    #[test]
    fn clock_events_are_bits_of_the_mask() {
        assert_eq!(ClockEvent::of(0x1 | 0x2 | 0x100), []);
        for bit in [0x10, 0x200, 0x800, 1 << 40] {
            assert_eq!(ClockEvent::of(0x1 | bit), [ClockEvent::Other], "{bit:#x}");
        }
        assert_eq!(ClockEvent::of(0x28), [ClockEvent::HwSlowdown, ClockEvent::SwThermal]);
        assert_eq!(ClockEvent::of(0x4 | 0x40 | 0x80 | 0x400 | 1 << 40).len(), 5);
    }

    #[test]
    fn xids_have_the_class_of_the_catalogue() {
        let catalogue = [
            (
                "application",
                "8 11 13 25 31 39 40 41 60 68 69 70 71 72 75 76 77 80 82 83 84 85 86 88 89 94 96 97 98 99 100 101 102 \
                 103 104 105 126 127 128 129 130 131 132 133 134 135 139",
            ),
            ("reset", "46 62 64 95 109 110 119 120 136 140 143 155 156 158"),
            ("reboot", "79 151"),
            ("fabric", "74 144 145 146 147 148 149 150"),
            ("hardware", "32 48 54"),
            ("no_action", "14 37 38 43 44 63 66 67 92 93 106 107 121 137 141 157 160 161"),
            ("cleanup", "45"),
            ("informational", "78 154"),
        ];
        let of = |(class, xids): (&'static str, &str)| {
            xids.split_whitespace().map(move |xid| (xid.parse().unwrap(), class)).collect::<Vec<(u64, _)>>()
        };
        let known: BTreeMap<u64, &str> = catalogue.into_iter().flat_map(of).collect();
        for xid in (0..1000).chain([u64::MAX]) {
            assert_eq!(XidClass::of(xid).name(), *known.get(&xid).unwrap_or(&"unclear"), "{xid}");
        }
    }
}
