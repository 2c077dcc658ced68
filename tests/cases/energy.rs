//! Tests the energy of users: the published parts add up to the increase of the driver's counter, and energy that was
//! not observed belongs to no user. Needs root, to set the owners of made-up processes.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::collections::BTreeMap;
use std::process::Command;

use end_to_end::exporter::{self, Exporter, TICKS};
use end_to_end::fake::Scenario;
use end_to_end::page::Page;
use end_to_end::procfs::{OWNER, Process, Procfs};
use end_to_end::programs;
use serde_json::{Value, json};

const FAMILY: &str = "bailiff_energy_joules_total";
const ALICE: u32 = OWNER;
const BOB: u32 = OWNER + 1;
/// Two busy users.
const BUSY: &str = "[{pid: 4100, used: 1GiB, sm: 60}, {pid: 4101, used: 1GiB, sm: 20}]";

fn procfs() -> Procfs {
    Procfs::new().with(&Process::new(4100)).with(&Process { owner: BOB, ..Process::new(4101) })
}

/// Returns a GPU with this counter in joules and these processes.
fn gpu(energy: u32, processes: &str) -> String {
    format!("sampling_period: 20ms\ngpus:\n- {{energy: {energy}J, processes: {processes}}}\n")
}

fn start(scenario: &Scenario, procfs: &Procfs) -> Exporter {
    let mut command = exporter::command(scenario);
    command.args(TICKS).arg("--procfs").arg(procfs.path());
    Exporter::spawn(command)
}

/// Returns the published energy of GPU 0 in millijoules, by part and user.
#[expect(clippy::cast_possible_truncation, reason = "the figures are small")]
fn parts(page: &Page) -> BTreeMap<String, i64> {
    let name = |labels: &BTreeMap<String, String>| labels.get("user").unwrap_or(&labels["part"]).clone();
    let found = page.all(FAMILY, &[("gpu", "0")]);
    found.map(|(labels, joules)| (name(labels), (joules * 1e3).round() as i64)).collect()
}

fn of(parts: &[(&str, i64)]) -> BTreeMap<String, i64> {
    parts.iter().map(|(name, millijoules)| ((*name).to_owned(), *millijoules)).collect()
}

/// Waits until the parts of a window after the first sample are published.
fn until_published(exporter: &Exporter) {
    exporter.until("the energy is published", |page| (!parts(page).is_empty()).then_some(()));
    exporter.next();
}

/// Waits until the parts add up to this increase, and returns them.
fn until_sum(exporter: &Exporter, millijoules: i64) -> BTreeMap<String, i64> {
    exporter.until("the increase is published", |page| {
        let parts = parts(page);
        (parts.values().sum::<i64>() == millijoules).then_some(parts)
    })
}

#[test]
fn energy_of_busy_users_is_split_and_of_an_idle_gpu_is_not() {
    let (scenario, procfs) = (Scenario::new(&gpu(1000, BUSY)), procfs());
    let exporter = start(&scenario, &procfs);
    let (alice, bob) = (ALICE.to_string(), BOB.to_string());
    until_published(&exporter);
    scenario.set(&gpu(1001, BUSY));
    let busy = of(&[(&alice, 750), (&bob, 250), ("idle", 0), ("unattributed", 0)]);
    assert_eq!(until_sum(&exporter, 1000), busy);
    // The samples of the busy time are still in the look-back for some windows, in which nothing is known.
    let calm = BUSY.replace("sm: 60", "sm: 0").replace("sm: 20", "sm: 0");
    scenario.set(&gpu(1001, &calm));
    exporter.until("both are observed idle", |page| {
        let idle = |pid| page.value("bailiff_process_gpu_idle_seconds", &[("pid", pid)]);
        (idle("4100")? > 0.0 && idle("4101")? > 0.0).then_some(())
    });
    scenario.set(&gpu(1004, &calm));
    let expected = of(&[(&alice, 750), (&bob, 250), ("idle", 3000), ("unattributed", 0)]);
    assert_eq!(until_sum(&exporter, 4000), expected);
    scenario.set(&gpu(1004, "[]"));
    exporter.until("the users have left", |page| {
        page.all("bailiff_process_gpu_memory_bytes", &[]).next().is_none().then_some(())
    });
    assert_eq!(parts(&exporter.page()), expected, "users keep what they used");
}

#[test]
fn unknown_utilization_is_unattributed() {
    let procfs = procfs();
    let faults = "faults: {errors: {nvmlDeviceGetProcessUtilization: unknown, \
                  nvmlDeviceGetProcessesUtilizationInfo: unknown}}, processes";
    let text = |energy| gpu(energy, BUSY).replace("processes", faults);
    let scenario = Scenario::new(&text(1000));
    let exporter = start(&scenario, &procfs);
    until_published(&exporter);
    scenario.set(&text(1002));
    assert_eq!(until_sum(&exporter, 2000), of(&[("idle", 0), ("unattributed", 2000)]));
}

#[test]
fn driver_without_the_counter_has_no_energy() {
    for code in ["not_supported", "function_not_found", "timeout"] {
        let fault = format!("faults: {{errors: {{nvmlDeviceGetTotalEnergyConsumption: {code}}}}}, processes");
        let (scenario, procfs) = (Scenario::new(&gpu(1000, BUSY).replace("processes", &fault)), procfs());
        let exporter = start(&scenario, &procfs);
        exporter.next();
        let page = exporter.next();
        assert_eq!(page.value("bailiff_gpu_up", &[]), Some(1.0), "{code}");
        assert_eq!(parts(&page), of(&[]), "{code}");
        let gaps = page.value("bailiff_gaps_total", &[("gap", "telemetry")]).unwrap();
        assert_eq!(gaps > 0.0, code == "timeout", "{code}: {gaps} gaps");
    }
}

#[test]
fn counter_that_steps_back_and_a_restart_add_nothing() {
    let (scenario, procfs) = (Scenario::new(&gpu(1000, BUSY)), procfs());
    let exporter = start(&scenario, &procfs);
    let (alice, bob) = (ALICE.to_string(), BOB.to_string());
    until_published(&exporter);
    let fell = |exporter: &Exporter, energy: u32| {
        scenario.set(&gpu(energy, BUSY));
        exporter.until("the counter is read", |page| {
            (page.value("bailiff_gpu_energy_joules_total", &[])? == f64::from(energy)).then_some(())
        });
    };
    fell(&exporter, 10);
    fell(&exporter, 14);
    let later = of(&[(&alice, 3000), (&bob, 1000), ("idle", 0), ("unattributed", 0)]);
    assert_eq!(parts(&exporter.page()), later, "counted from the new value");
    drop(exporter);
    scenario.set(&gpu(900, BUSY));
    let again = start(&scenario, &procfs);
    until_published(&again);
    let nothing = of(&[(&alice, 0), (&bob, 0), ("idle", 0), ("unattributed", 0)]);
    assert_eq!(parts(&again.page()), nothing, "the time without an exporter belongs to no part");
}

#[test]
fn energy_of_a_gpu_in_mig_mode_is_unattributed() {
    let mig = |energy: u32| {
        let instance =
            "{gi: 7, profile: 1g.18gb, memory: {total: 18000MiB}, processes: [{pid: 4100, used: 1GiB}]}";
        format!("sampling_period: 20ms\ngpus:\n- {{energy: {energy}J, mig: [{instance}]}}\n")
    };
    let (scenario, procfs) = (Scenario::new(&mig(1000)), procfs());
    let exporter = start(&scenario, &procfs);
    until_published(&exporter);
    scenario.set(&mig(1005));
    assert_eq!(until_sum(&exporter, 5000), of(&[("idle", 0), ("unattributed", 5000)]));
    let of_instances = exporter.page();
    let of_instances = of_instances.all(FAMILY, &[]).filter(|(labels, _)| labels["gpu"] != "0").count();
    assert_eq!(of_instances, 0, "instances have no counter of their own");
}

#[test]
fn counter_that_cannot_be_read_for_a_while_is_a_gap() {
    let (scenario, procfs) = (Scenario::new(&gpu(1000, BUSY)), procfs());
    let exporter = start(&scenario, &procfs);
    until_published(&exporter);
    let fault = "faults: {errors: {nvmlDeviceGetTotalEnergyConsumption: timeout}}, processes";
    scenario.set(&gpu(1000, BUSY).replace("processes", fault));
    exporter.until("the counter is unknown", |page| {
        page.value("bailiff_gpu_energy_joules_total", &[]).is_none().then_some(())
    });
    scenario.set(&gpu(1007, BUSY));
    let parts = until_sum(&exporter, 7000);
    assert_eq!(parts["unattributed"], 7000, "{parts:?}");
}

#[test]
fn info_prints_the_energy_as_a_table_and_as_json() {
    let procfs = procfs();
    let info = |scenario: &Scenario, flags: &[&str]| {
        let mut command = Command::new(programs::bailiff());
        command.args(["info", "--energy", "--alone", "--interval", "700ms"]).args(flags);
        command.arg("--nvml-library").arg(programs::fake_nvml()).arg("--procfs").arg(procfs.path());
        command.env("FAKE_NVML_SCENARIO", scenario.path()).env_remove("LEASE_REDIS_URL");
        command.env("LEASE_DIR", scenario.directory().join("pool"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let grows = gpu(1000, BUSY).replace("processes", "energy_grows: true, power: 400W, processes");
    let scenario = Scenario::new(&grows);
    let report: Value = serde_json::from_str(&info(&scenario, &["--json"])).unwrap();
    let gpu = &report["gpus"][0];
    let part = |name: &str| gpu["energy_parts_mj"][name].as_u64().unwrap();
    let users = gpu["energy_parts_mj"]["users"].as_object().unwrap();
    let sum =
        part("idle") + part("unattributed") + users.values().map(|user| user.as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        gpu["energy_mj"].as_u64().unwrap(),
        1_000_000 + sum,
        "the counter was at 1000 J in the first sample"
    );
    assert!(sum > 200_000 && users.contains_key(&ALICE.to_string()), "{gpu}");
    let table = info(&scenario, &[]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["GPU", "PART", "USER", "ENERGY", "(Wh)", "SHARE"], "{table}");
    assert_eq!(rows[2][..3], ["0", "user", &ALICE.to_string()], "{table}");
    assert_eq!((rows[2][4], rows[3][4]), ("75.0%", "25.0%"), "{table}");
    let names = rows[4..6].iter().map(|row| row[1]).collect::<Vec<_>>();
    assert_eq!(names, ["idle", "unattributed"], "{table}");
    let fault = "faults: {errors: {nvmlDeviceGetTotalEnergyConsumption: not_supported}}, processes";
    let old = Scenario::new(&grows.replace("processes", fault));
    let table = info(&old, &[]);
    assert!(table.contains("energy unknown: the driver does not report it"), "{table}");
    let report: Value = serde_json::from_str(&info(&old, &["--json"])).unwrap();
    assert_eq!([&report["gpus"][0]["energy_mj"], &report["gpus"][0]["energy_parts_mj"]], [&json!(null); 2]);
}
