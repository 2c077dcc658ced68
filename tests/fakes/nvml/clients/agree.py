#!/usr/bin/env python3
"""Prints, as one JSON document, what two third-party clients read from the fake driver.

NVIDIA's own Python binding is called directly, and nvitop through its API. The caller creates the environment
(`pip install -r requirements.txt`) and sets LD_LIBRARY_PATH and FAKE_NVML_SCENARIO. README.md contains an example.

If the driver refuses a call, the document contains {"error": NUMBER} in its place. "disagreements" lists the
differences between the two clients. Exit codes: 0 if there are none; 1 if there are some; 2 if the driver did not
respond in time.
"""

import argparse
import json
import os
import sys
import threading

import pynvml

NO_INSTANCE = 0xFFFFFFFF
# Graphics, SM, SM occupancy, tensor, DRAM; and each unit of NVDEC, NVJPG and OFA.
ACTIVITIES = [1, 2, 3, 5, 10, *range(30, 38), *range(40, 48), 50, 51]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--last-seen", type=int, default=0, help="ask for samples newer than this, in microseconds")
    arguments.add_argument("--timeout", type=float, default=20.0, help="give up on a driver that hangs, in seconds")
    settings = arguments.parse_args()
    give_up_after(settings.timeout)
    document = describe(settings.last_seen)
    json.dump(document, sys.stdout, indent=1, sort_keys=True)
    print()
    return 1 if document.get("disagreements") else 0


def give_up_after(seconds):
    """Exits after this time. A hung call never returns to Python, so an exception could not end it."""

    def give_up():
        print(json.dumps({"error": "the driver did not answer in time"}), flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()


def describe(last_seen):
    opened = answer(pynvml.nvmlInit)
    if opened is not None:
        return {"init": opened}
    gpus = [with_nvitop(index, binding_gpu(index, last_seen)) for index in range(pynvml.nvmlDeviceGetCount())]
    return {
        "init": "ok",
        "driver": answer(pynvml.nvmlSystemGetDriverVersion),
        "gpus": gpus,
        "disagreements": [text for gpu in gpus for text in disagreements(gpu)],
    }


def answer(function, *arguments):
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        return {"error": error.value}


def refused(value):
    return isinstance(value, dict) and "error" in value


# What NVIDIA's binding reports.


def binding_gpu(index, last_seen):
    handle = answer(pynvml.nvmlDeviceGetHandleByIndex, index)
    if refused(handle):
        return {"index": index, **handle}
    mode = answer(pynvml.nvmlDeviceGetMigMode, handle)
    gpu = {
        "index": index,
        **unit(handle),
        "memory_limit": memory_limit(handle),
        "fields": fields(handle),
        "gpm": activity(handle, pynvml.nvmlGpmSampleGet),
        "accounting": accounting(handle),
        "accounting_mode": answer(pynvml.nvmlDeviceGetAccountingMode, handle),
        "xids": xids(handle),
        "rows": answer(pynvml.nvmlDeviceGetRemappedRows, handle),
        "clock_events": answer(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
        "throttle_reasons": answer(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        "energy": answer(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
        "compute_mode": answer(pynvml.nvmlDeviceGetComputeMode, handle),
        "mig_mode": mode if refused(mode) else mode[0],
        "rates": rates(handle),
        "samples": samples(handle, last_seen),
        "samples_v1": samples_v1(handle, last_seen),
        "mig": [],
    }
    most = answer(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    for position in range(0 if refused(most) else most):
        instance = answer(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
        if not refused(instance):
            gpu["mig"].append(binding_instance(position, handle, instance))
    return gpu


def binding_instance(position, gpu, handle):
    gi = answer(pynvml.nvmlDeviceGetGpuInstanceId, handle)
    return {
        "index": position,
        **unit(handle),
        "gi": gi,
        "gpm": activity(gpu, lambda gpu, sample: pynvml.nvmlGpmMigSampleGet(gpu, gi, sample)),
        "ci": answer(pynvml.nvmlDeviceGetComputeInstanceId, handle),
        "attributes": attributes(handle),
        "samples": samples(handle, 0),
    }


def attributes(handle):
    found = answer(pynvml.nvmlDeviceGetAttributes_v2, handle)
    return found if refused(found) else {name: getattr(found, name) for name, _ in found._fields_}


def unit(handle):
    return {
        "uuid": answer(pynvml.nvmlDeviceGetUUID, handle),
        "name": answer(pynvml.nvmlDeviceGetName, handle),
        "memory_v1": memory(handle, None),
        "memory_v2": memory(handle, pynvml.nvmlMemory_v2),
        "compute": processes(pynvml.nvmlDeviceGetComputeRunningProcesses, handle),
        "graphics": processes(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
        "mps": processes(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, handle),
    }


def memory(handle, version):
    info = answer(pynvml.nvmlDeviceGetMemoryInfo, handle, version)
    if refused(info):
        return info
    fields = ["total", "free", "used"] + (["reserved"] if version else [])
    return {field: getattr(info, field) for field in fields}


def memory_limit(handle):
    """Reads the limit of the cgroup file system's root, which every cgroup without a limit of its own has."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = b"/sys/fs/cgroup"
    found = answer(pynvml.nvmlDeviceGetMemoryLimits_v1, handle, limits)
    if refused(found):
        return found
    unlimited = limits.hardLimit == 2**64 - 1
    return {"soft": limits.softLimit, "hard": None if unlimited else limits.hardLimit, "used": limits.currentUsed}


def fields(handle):
    """Reads health fields: recovery action, ECC errors, retired pages, remapped rows. The value is None if refused."""
    found = answer(pynvml.nvmlDeviceGetFieldValues, handle, [230, 3, 4, 29, 30, 142, 143, 144, 145])
    if refused(found):
        return found
    value = {pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal", pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal"}
    known = lambda one: one.nvmlReturn == pynvml.NVML_SUCCESS and one.valueType in value
    return {str(one.fieldId): getattr(one.value, value[one.valueType]) if known(one) else None for one in found}


def activity(handle, get):
    """Reads GPM's metrics between two samples, in percent. Those that the driver refuses are left out."""
    support = answer(pynvml.nvmlGpmQueryDeviceSupport, handle)
    if refused(support) or not support.isSupportedDevice:
        return None
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    found = [answer(get, handle, sample) for sample in samples]
    if any(refused(one) for one in found):
        return {}
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(ACTIVITIES)
    request.sample1, request.sample2 = samples
    for position, metric in enumerate(ACTIVITIES):
        request.metrics[position].metricId = metric
    found = pynvml.nvmlGpmMetricsGet(request)
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)
    known = [one for one in found.metrics[: len(ACTIVITIES)] if one.nvmlReturn == pynvml.NVML_SUCCESS]
    return {str(one.metricId): one.value for one in known}


def accounting(handle):
    """Reads what is accounted of each process, with both versions of the call."""
    pids = answer(pynvml.nvmlDeviceGetAccountingPids, handle)
    if refused(pids):
        return {}
    stats = {str(pid): answer(pynvml.nvmlDeviceGetAccountingStats_v2, handle, pid) for pid in pids}
    fields = ["pid", "isRunning", "maxMemoryUsage", "sumGpuUtil", "sumFbUtil", "sampleCount", "startTime"]
    first = {str(pid): answer(pynvml.nvmlDeviceGetAccountingStats, handle, pid) for pid in pids}
    return {
        pid: [first[pid].maxMemoryUsage, *(None if refused(one) else getattr(one, field) for field in fields)]
        for pid, one in stats.items()
    }


def xids(handle):
    """Returns the Xid errors that are waiting."""
    events = answer(pynvml.nvmlEventSetCreate)
    if refused(events):
        return events
    types = answer(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
    wanted = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventMigConfigChange
    registered = types if refused(types) else answer(pynvml.nvmlDeviceRegisterEvents, handle, types & wanted, events)
    found = []
    while not refused(registered):
        event = answer(pynvml.nvmlEventSetWait_v2, events, 100)
        if refused(event):
            break
        if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
            found.append(event.eventData)
    pynvml.nvmlEventSetFree(events)
    return found


def processes(function, handle):
    found = answer(function, handle)
    if refused(found):
        return found
    return [
        {
            "pid": one.pid,
            "used": one.usedGpuMemory,
            "gi": known(one.gpuInstanceId),
            "ci": known(one.computeInstanceId),
        }
        for one in found
    ]


def known(instance):
    return None if instance == NO_INSTANCE else instance


def rates(handle):
    found = answer(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return found if refused(found) else {"gpu": found.gpu, "memory": found.memory}


def samples(handle, last_seen):
    found = answer(pynvml.nvmlDeviceGetProcessUtilization, handle, last_seen)
    return found if refused(found) else [sample(one) for one in found]


def samples_v1(handle, last_seen):
    found = answer(pynvml.nvmlDeviceGetProcessesUtilizationInfo, handle, last_seen)
    return found if refused(found) else [{**sample(one), "jpg": one.jpgUtil, "ofa": one.ofaUtil} for one in found]


def sample(one):
    return {
        "pid": one.pid,
        "sm": one.smUtil,
        "memory": one.memUtil,
        "encoder": one.encUtil,
        "decoder": one.decUtil,
        "stamp": one.timeStamp,
    }


# What nvitop reports.


def with_nvitop(index, gpu):
    # nvitop initializes the library on import, so it is imported only after the driver has responded.
    from nvitop import MigDevice, PhysicalDevice

    gpu["nvitop"] = nvitop_unit(PhysicalDevice(index))
    for instance in gpu.get("mig", []):
        # Device.mig_devices() stops at the first gap, so each instance is queried by its index.
        instance["nvitop"] = nvitop_unit(MigDevice((index, instance["index"])))
    return gpu


def nvitop_unit(device):
    info = device.memory_info()
    return {
        "uuid": plain(device.uuid()),
        "name": plain(device.name()),
        "memory": {field: plain(getattr(info, field)) for field in ("total", "free", "used")},
        "utilization": {"gpu": plain(device.gpu_utilization()), "memory": plain(device.memory_utilization())},
        "processes": [nvitop_process(one) for one in device.processes().values()],
    }


def nvitop_process(one):
    return {
        "pid": one.pid,
        "kind": str(one.type),
        "used": plain(one.gpu_memory()),
        "gi": known_to_nvitop(one.gpu_instance_id()),
        "ci": known_to_nvitop(one.compute_instance_id()),
        "sm": plain(one.gpu_sm_utilization()),
        "memory": plain(one.gpu_memory_utilization()),
        "encoder": plain(one.gpu_encoder_utilization()),
        "decoder": plain(one.gpu_decoder_utilization()),
    }


def known_to_nvitop(instance):
    value = plain(instance)
    return None if value == NO_INSTANCE else value


def plain(value):
    """Converts nvitop's "N/A", which is a string of a special class, to None."""
    return None if str(value) == "N/A" else value


# Differences between the two.


def disagreements(gpu):
    if refused(gpu):
        return
    for one in [gpu, *gpu["mig"]]:
        theirs = one["nvitop"]
        if theirs["uuid"] != one["uuid"]:
            yield f"{one['uuid']}: nvitop names it {theirs['uuid']}"
        memory = one["memory_v2"]
        if not refused(memory) and any(theirs["memory"][key] != memory[key] for key in theirs["memory"]):
            yield f"{one['uuid']}: memory is {memory} and to nvitop {theirs['memory']}"
        ours, nvitops = holders(one), {row["pid"]: row["used"] for row in theirs["processes"]}
        if ours is not None and ours != nvitops:
            yield f"{one['uuid']}: processes are {ours} and to nvitop {nvitops}"


def holders(one):
    """Returns the memory by pid, from the two lists that nvitop reads. It does not read the list of MPS clients."""
    if refused(one["compute"]) or refused(one["graphics"]):
        return None
    return {row["pid"]: row["used"] for row in one["compute"] + one["graphics"]}


if __name__ == "__main__":
    sys.exit(main())
