//! Tests the status page for sources other than the driver: `/proc`, quota files, MPS daemons.

use std::fs;

use end_to_end::browser::Browser;
use end_to_end::cuda::uuid;
use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::http;
use end_to_end::mps::Mps;
use end_to_end::page::Page;
use end_to_end::procfs::Procfs;
use end_to_end::showcase::process;

use super::{ALL, ONE, assert_fits};

/// The NVML UUID of the first GPU, as in quota files.
const UUID: &str = "GPU-00000000-0000-4000-8000-000000000001";

/// An empty directory is not a valid `/proc`, neither at the start nor later.
#[test]
fn directory_that_is_no_proc_is_reported_down() {
    let proc_up = |page: &Page| page.value("bailiff_source_up", &[("source", "proc")]);
    let scenario = Scenario::new(ONE);
    let procfs = Procfs::new().with(&process(0)).with(&process(1));
    let empty = tempfile::tempdir().unwrap();
    for directory in [empty.path(), procfs.path()] {
        let exporter = Exporter::start(&scenario, &["--procfs", directory.to_str().unwrap()]);
        if directory == procfs.path() {
            exporter.until("/proc is read", |page| (proc_up(page)? > 0.0).then_some(()));
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path)).unwrap();
            }
        }
        let page = exporter.until("the source is down", |page| (proc_up(page)? < 1.0).then(|| page.clone()));
        assert_eq!(page.all("bailiff_process_state", &[("state", "hidden")]).count(), 0);
        let html = http::get(exporter.address(), "/", &[]).unwrap().text();
        assert!(
            html.contains("The source proc returned no data") && !html.contains("/proc hides it"),
            "{html}"
        );
        assert!(!html.contains(">hidden<"), "{html}");
    }
}

#[test]
fn quotas_and_mps_daemons_fit_every_screen() {
    let directory = tempfile::tempdir().unwrap();
    let user = directory.path().join("1000");
    fs::create_dir(&user).unwrap();
    let gib = 1 << 30;
    bailiff_ledger::create(&user.join("a"), &[(uuid(0), 40 * gib), (uuid(1), 8 * gib)]).unwrap();
    bailiff_ledger::create(&user.join("of-a-long-name".repeat(4)), &[(uuid(0), 2 * gib)]).unwrap();
    fs::write(user.join("none"), "no quota").unwrap();
    let mps = Mps::of("550");
    mps.start("pipes", UUID);
    let client = mps.client("pipes");
    let other = UUID.replace("0001", "0002");
    let gpus = format!(
        "gpus:\n  - uuid: {UUID}\n    processes: [{{pid: {}, used: 1GiB}}]\n  - uuid: {other}\n",
        client.pid()
    );
    let scenario = Scenario::new(&gpus);
    let (dir, control) = (directory.path().display().to_string(), mps.bin().join("nvidia-cuda-mps-control"));
    let control = control.display().to_string();
    let flags =
        ["--deadline", "10s", "--quota.dir", &dir, "--mps.control", &control, "--mps.interval", "100ms"];
    let exporter = Exporter::start(&scenario, &flags);
    let server = ("server", &*mps.server("pipes").to_string());
    exporter.until("the daemon's client is exported", |page| page.value("bailiff_mps_clients", &[server]));
    let mut browser = Browser::start();
    assert_fits(&mut browser, &format!("http://{}/", exporter.address()), &ALL);
    let quotas = browser.text("document.querySelector('#quotas').innerText");
    for text in
        ["1000/a", "40.0 GiB", "8.0 GiB", "unknown: the content of 1000/none, because it is too short"]
    {
        assert!(quotas.contains(text), "no {text} in {quotas}");
    }
    let daemons = browser.text("document.querySelector('#mps').innerText");
    for text in ["control daemon", "answers", "server", "active"] {
        assert!(daemons.contains(text), "no {text} in {daemons}");
    }
}
