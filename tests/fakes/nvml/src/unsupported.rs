//! Functions that clients call but that no test needs. Each returns "not supported".

use crate::code::Code;
use crate::edge::device_calls;

/// The other arguments are not declared, because they are neither read nor written. The C calling convention permits
/// a function to declare fewer arguments than it is passed.
macro_rules! unsupported {
    ($($name:ident)*) => {
        device_calls! { $($name(_call) { Err(Code::NOT_SUPPORTED) })* }
    };
}

unsupported! {
    nvmlDeviceGetActiveVgpus
    nvmlDeviceGetApplicationsClock
    nvmlDeviceGetAutoBoostedClocksEnabled
    nvmlDeviceGetBoardId
    nvmlDeviceGetBoardPartNumber
    nvmlDeviceGetBridgeChipInfo
    nvmlDeviceGetBusType
    nvmlDeviceGetClock
    nvmlDeviceGetConfComputeMemSizeInfo
    nvmlDeviceGetCpuAffinity
    nvmlDeviceGetCurrentDriverModel
    nvmlDeviceGetDefaultApplicationsClock
    nvmlDeviceGetDetailedEccErrors
    nvmlDeviceGetDriverModel
    nvmlDeviceGetDriverModel_v2
    nvmlDeviceGetEncoderCapacity
    nvmlDeviceGetEncoderSessions
    nvmlDeviceGetEncoderStats
    nvmlDeviceGetFBCSessions
    nvmlDeviceGetFBCStats
    nvmlDeviceGetFanSpeedRPM
    nvmlDeviceGetFanSpeed_v2
    nvmlDeviceGetGpuFabricInfo
    nvmlDeviceGetGpuFabricInfoV
    nvmlDeviceGetGpuInstanceProfileInfo
    nvmlDeviceGetGpuOperationMode
    nvmlDeviceGetGspFirmwareMode
    nvmlDeviceGetGspFirmwareVersion
    nvmlDeviceGetHostVgpuMode
    nvmlDeviceGetInforomConfigurationChecksum
    nvmlDeviceGetInforomImageVersion
    nvmlDeviceGetInforomVersion
    nvmlDeviceGetIrqNum
    nvmlDeviceGetMarginTemperature
    nvmlDeviceGetMaxCustomerBoostClock
    nvmlDeviceGetMemoryAffinity
    nvmlDeviceGetMemoryBusWidth
    nvmlDeviceGetModuleId
    nvmlDeviceGetMultiGpuBoard
    nvmlDeviceGetNumFans
    nvmlDeviceGetNumGpuCores
    nvmlDeviceGetNumaNodeId
    nvmlDeviceGetNvLinkCapability
    nvmlDeviceGetNvLinkErrorCounter
    nvmlDeviceGetNvLinkRemoteDeviceType
    nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlDeviceGetNvLinkState
    nvmlDeviceGetNvLinkVersion
    nvmlDeviceGetP2PStatus
    nvmlDeviceGetPcieLinkMaxSpeed
    nvmlDeviceGetPcieReplayCounter
    nvmlDeviceGetPcieSpeed
    nvmlDeviceGetPendingDriverModel
    nvmlDeviceGetPerformanceModes
    nvmlDeviceGetPlatformInfo
    nvmlDeviceGetPowerManagementMode
    nvmlDeviceGetPowerSource
    nvmlDeviceGetRowRemapperHistogram
    nvmlDeviceGetSramEccErrorStatus
    nvmlDeviceGetSupportedClocksEventReasons
    nvmlDeviceGetSupportedClocksThrottleReasons
    nvmlDeviceGetSupportedGraphicsClocks
    nvmlDeviceGetSupportedMemoryClocks
    nvmlDeviceGetSupportedPerformanceStates
    nvmlDeviceGetTargetFanSpeed
    nvmlDeviceGetTemperatureThreshold
    nvmlDeviceGetTopologyCommonAncestor
    nvmlDeviceGetTopologyNearestGpus
    nvmlDeviceGetVbiosVersion
    nvmlDeviceGetVgpuSchedulerCapabilities
    nvmlDeviceGetVgpuSchedulerState
    nvmlDeviceGetViolationStatus
    nvmlDeviceGetVirtualizationMode
    nvmlDeviceOnSameBoard
}
