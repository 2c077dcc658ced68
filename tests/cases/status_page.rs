//! Tests the status pages in a real browser: they fit every screen, follow accessibility rules, do not show unknown
//! values as 0, work without scripts, and never render a process name as markup.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

mod sources;

use std::path::PathBuf;

use end_to_end::browser::{Browser, Screen};
use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::http;
use end_to_end::leases::{end, hold, pool};
use end_to_end::node::Node;
use end_to_end::procfs::{Process, Procfs};
use end_to_end::showcase::{NAME, Showcase, process};
use end_to_end::tenant::Tenant;
use rustix::process::Signal;
use serde_json::json;

const NONE: &str = "gpus: []\n";
const ONE: &str = "sampling_period: 20ms\ngpus:\n  - memory: {unaccounted: 2GiB}\n    \
    processes: [{pid: 4100, used: 40GiB}, {pid: 4101, used: 12GiB, sm: 63}]\n";
/// A typical node: some GPUs are busy, some are held and idle, one is lost, one has unattributed memory, and one has
/// no holders.
const EIGHT: &str = "sampling_period: 20ms
gpus:
  - {power: 612W, temperature: 71, processes: [{pid: 4100, used: 118GiB, sm: 97, memory: 41}]}
  - {power: 488W, temperature: 64, processes: [{pid: 4101, used: 61GiB, sm: 58}, {pid: 4105, used: 34GiB, sm: 22}]}
  - {processes: [{pid: 4102, used: 40GiB}, {pid: 4106, used: 12GiB}]}
  - {memory: {unaccounted: 21GiB}, processes: [{pid: 4103, used: 9GiB}]}
  - {processes: [{pid: 4104, used: 77GiB}, {pid: 4110, used: 30GiB}]}
  - {}
  - {power: 655W, temperature: 74, processes: [{pid: 4107, used: 96GiB, sm: 88}, {pid: 4108, used: 8GiB, sm: 3}, {pid: 4109, used: null}]}
  - {xid: [79], faults: {lost: true}}
";
const MANY_HOLDERS: &str = "sampling_period: 20ms
gpus:
  - {count: 8, power: 500W, processes: [{pid: 4100, count: 25, pid_step: 100, used: 1GiB, sm: 4}, {pid: 4125, count: 75, pid_step: 100, used: 512MiB}]}
";

/// Number of pixels by which the page is wider than its window.
const TOO_WIDE: &str = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
/// Elements that must not appear on our pages, and attributes that would run a script.
const FOREIGN: &str = "[...document.querySelectorAll('*')].filter(one => ['SCRIPT', 'IMG', 'IFRAME', 'OBJECT', 'EMBED', \
    'FORM', 'B', 'BASE', 'LINK'].includes(one.tagName) || [...one.attributes].some(attribute => \
    attribute.name.startsWith('on') || attribute.name == 'style')).map(one => one.outerHTML)";

/// Asserts that a page fits each of these screens and follows accessibility rules on them.
fn assert_fits(browser: &mut Browser, url: &str, screens: &[Screen]) {
    for screen in screens {
        fits(browser, url, screen);
        assert_eq!(browser.accessibility_violations(), [""; 0], "{screen:?}");
    }
}

/// Asserts that a page is no wider than this screen, contains no foreign element, and causes no errors in the
/// browser's console.
fn fits(browser: &mut Browser, url: &str, screen: &Screen) {
    // `still` turns off the automatic refresh while the page is tested.
    browser.visit(&format!("{url}?still"), *screen);
    assert_eq!(browser.query("window.innerWidth"), json!(screen.width), "{screen:?}");
    let wide = "[...document.querySelectorAll('body *')].filter(one => one.getBoundingClientRect().right > innerWidth \
            && !one.closest('.scroll')).map(one => one.outerHTML.slice(0, 200))";
    assert_eq!(browser.query(TOO_WIDE), json!(0), "{screen:?}: {}", browser.query(wide));
    assert_eq!(browser.console_errors(), [""; 0], "{screen:?}");
    assert_eq!(browser.query(FOREIGN), json!([]), "{screen:?}");
    assert_eq!(browser.query("document.querySelectorAll('h1').length"), json!(1));
}

const ALL: [Screen; 4] = [Screen::WIDE, Screen::WIDE.dark(), Screen::PHONE, Screen::PHONE.dark()];

#[test]
fn no_gpu_differs_from_no_answer() {
    let mut browser = Browser::start();
    let none = Showcase::new(NONE, 0);
    none.exporter.next();
    assert_fits(&mut browser, &none.url(), &[Screen::WIDE, Screen::PHONE.dark()]);
    assert_eq!(browser.text("document.title"), format!("GPUs on {NAME} · GPU Bailiff"));
    let text = browser.text("document.querySelector('#gpus').innerText");
    assert!(text.contains("responds, but lists no GPUs"), "{text}");
    let text = browser.text("document.querySelector('#holders').innerText");
    assert!(text.contains("None, because there are no GPUs."), "{text}");
    let broken = Showcase::new("init: driver_not_loaded\ngpus: []\n", 0);
    broken.exporter.next();
    assert_fits(&mut browser, &broken.url(), &[Screen::WIDE, Screen::PHONE.dark()]);
    let text = browser.text("document.querySelector('main').innerText");
    assert!(text.contains("unknown: the list of GPUs, because the kernel module is not loaded"), "{text}");
    assert!(text.contains("The source nvml returned no data"), "{text}");
}

#[test]
fn one_gpu_fits_every_screen() {
    let node = Showcase::new(ONE, 2);
    node.exporter.next();
    let mut browser = Browser::start();
    assert_fits(&mut browser, &node.url(), &ALL);
    let card = browser.text("document.querySelector('.card').innerText");
    for part in ["54.0 GiB of 140.4 GiB", "52.0 GiB", "2.0 GiB", "600.0 MiB", "85.8 GiB", "63 % of the time"]
    {
        assert!(card.contains(part), "no {part} in {card}");
    }
    let bar = browser.text("document.querySelector('.bar').getAttribute('aria-label')");
    assert!(bar.contains("held by processes 52.0 GiB, unaccounted 2.0 GiB"), "{bar}");
    let row = browser.text("document.querySelector('#holders tbody tr').innerText");
    assert!(row.contains("python3 4100") && row.contains("alice") && row.contains("job 4711"), "{row}");
}

#[test]
fn eight_gpus_with_leases_fit_every_screen() {
    let redis = pool("0-7");
    let holder = hold(&redis, &["run", "-n", "2"]);
    let node = Showcase::with(EIGHT, 11, &["--lease.redis", &redis.address()]);
    node.exporter.next();
    let mut browser = Browser::start();
    assert_fits(&mut browser, &node.url(), &[Screen::WIDE, Screen::PHONE.dark()]);
    let count = |browser: &mut Browser, what: &str| {
        browser.query(&format!("document.querySelectorAll('{what}').length"))
    };
    assert_eq!(count(&mut browser, ".card"), json!(8));
    assert_eq!(count(&mut browser, "#leases tbody tr"), json!(8));
    let lost = browser.text("document.querySelectorAll('.card')[7].innerText");
    assert!(lost.contains("unknown: the GPU has fallen off the bus"), "{lost}");
    let text = browser.text("document.querySelectorAll('.card')[6].innerText");
    assert!(text.contains("unknown: the driver does not report the memory of each holder"), "{text}");
    end(holder, Signal::TERM);
}

/// An empty bar would look like the value 0, so no bar is shown.
#[test]
fn unknown_value_has_a_reason_and_no_bar() {
    let node = Showcase::new(include_str!("../fakes/nvml/scenarios/mig.yaml"), 4);
    node.exporter.next();
    let mut browser = Browser::start();
    assert_fits(&mut browser, &node.url(), &[Screen::WIDE]);
    let bars = "[...document.querySelectorAll('.card')].map(card => [card.querySelector('h3').innerText.slice(0, 7), \
        card.querySelectorAll('.bar[aria-label^=Utilization]').length, \
        card.innerText.includes('unknown: not reported in MIG mode')])";
    let bars = browser.query(bars);
    let bars = bars.as_array().unwrap();
    assert!(bars.contains(&json!(["GPU 0:0", 0, true])), "{bars:?}");
    assert!(bars.contains(&json!(["GPU 1 N", 1, false])), "{bars:?}");
    let row = browser.text("[...document.querySelectorAll('#holders tbody tr')].find(row => row.innerText.includes(4100)).innerText");
    assert!(row.contains("unknown: MIG"), "{row}");
}

#[test]
fn page_with_800_processes_stays_bounded() {
    let node = Showcase::new(MANY_HOLDERS, 800);
    node.exporter.next();
    let page = http::get(node.exporter.address(), "/", &[]).unwrap();
    assert!(page.body.len() < 150_000, "{} bytes", page.body.len());
    let mut browser = Browser::start();
    for screen in [Screen::WIDE, Screen::PHONE] {
        fits(&mut browser, &node.url(), &screen);
    }
    let rows = "[...document.querySelectorAll('#holders tbody tr')].map(row => row.cells[1].innerText)";
    let rows: Vec<String> = serde_json::from_value(browser.query(rows)).unwrap();
    assert_eq!((rows.len(), rows[0].as_str(), rows[99].as_str()), (100, "1.0 GiB", "1.0 GiB"));
    let text = browser.text("document.querySelector('#holders').innerText");
    assert!(text.contains("700 more are not shown: see bailiff info, or"), "{text}");
    assert!(text.contains("; GPU 7: 100 with 62.5 GiB"), "{text}");
}

#[test]
fn refresh_needs_no_script_and_can_be_disabled() {
    let node = Showcase::new(ONE, 2);
    node.exporter.next();
    let mut browser = Browser::start();
    for scripts in [true, false] {
        browser.scripts(scripts);
        browser.visit(&node.url(), Screen::WIDE);
        assert_eq!(browser.query(TOO_WIDE), json!(0), "expressions are evaluated without scripts");
        let time = browser.text("document.querySelector('time').innerText");
        browser
            .until(&format!("![null, '{time}'].includes(document.querySelector('time')?.innerText ?? null)"));
    }
    browser.visit(&format!("{}?still", node.url()), Screen::WIDE);
    assert_eq!(browser.query("document.querySelectorAll('meta[http-equiv=refresh]').length"), json!(0));
}

#[test]
fn response_is_uncached_and_sandboxed() {
    let node = Showcase::with(NONE, 0, &["--web.enforcer-url", "http://127.0.0.1:9837/"]);
    let answer = http::get(node.exporter.address(), "/", &[]).unwrap();
    let head = answer.head.to_ascii_lowercase();
    for line in [
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "content-security-policy: default-src 'none'; style-src 'sha256-",
    ] {
        assert!(head.contains(line), "no {line} in {head}");
    }
    assert!(!head.contains("unsafe"), "{head}");
    assert!(answer.text().contains("href=\"http://127.0.0.1:9837/\""), "{}", answer.text());
    let mut browser = Browser::start();
    browser.visit(&node.url(), Screen::WIDE);
    assert_eq!(browser.console_errors(), [""; 0], "the page's own style is allowed");
    browser.query("document.body.insertAdjacentHTML('beforeend', '<p id=red style=\"color: red\">')");
    browser.query(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))",
    );
    assert_eq!(browser.query("window.ran === undefined"), json!(true));
    assert_eq!(
        browser.query("getComputedStyle(red).color === getComputedStyle(document.body).color"),
        json!(true)
    );
    browser.until("true");
    assert!(browser.console_errors().iter().any(|text| text.contains("Content Security Policy")));
}

/// Names with markup, bidirectional control characters, invisible characters, and excessive length.
#[test]
fn process_names_are_never_markup() {
    let names = [
        "<script>window.ran=1</script>".to_owned(),
        "\"><img src=x onerror=window.ran=1>".to_owned(),
        "</td></table><b>x".to_owned(),
        "' onclick='window.ran=1".to_owned(),
        "\u{202e}txet\u{2066}".to_owned(),
        "\u{1b}[2J\u{7}\u{85}".to_owned(),
        "&lt;b&gt;  two".to_owned(),
        "<!--".to_owned(),
        "x".repeat(64 << 10),
        "<b>".repeat(20 << 10),
    ];
    let procfs = Procfs::new();
    for (pid, name) in (4100..).zip(&names) {
        let cgroup = format!("0::/system.slice/{}.service\n", name.replace(['/', '\n'], "_"));
        procfs.add(&Process { comm: name.replace('\n', "_"), cgroup, ..Process::new(pid) });
    }
    procfs.write("4109/comm", "");
    let raw = b"4110 (\xff\xfe<b>) S 1 4110 4110 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 7 0 0\n";
    procfs.add(&Process::new(4110));
    std::fs::write(procfs.path().join("4110/stat"), raw).unwrap();
    let scenario = Scenario::new(
        "gpus:\n  - {name: \"<b>H200</b><script>window.ran=1</script>\", processes: [{pid: 4100, count: 11, used: 1GiB}]}\n",
    );
    let path = procfs.path().to_str().unwrap().to_owned();
    let exporter = Exporter::start(&scenario, &["--procfs", &path, "--process.command"]);
    exporter.next();
    let mut browser = Browser::start();
    assert_fits(&mut browser, &format!("http://{}/", exporter.address()), &[Screen::WIDE, Screen::PHONE]);
    assert_eq!(browser.query("window.ran === undefined"), json!(true));
    let text = browser.text("document.querySelector('main').innerText");
    for shown in [
        "<script>window.ran=1</script>",
        "\"><img src=x onerror=window.ran=1>",
        "&lt;b&gt;  two",
        "U+202E",
        "U+001B[2JU+0007",
        "U+FFFD",
    ] {
        assert!(text.contains(shown), "no {shown} in {text}");
    }
    assert!(
        text.chars().all(|letter| !matches!(letter, '\u{202a}'..='\u{202e}' | '\u{1b}' | '\u{7}')),
        "{text:?}"
    );
    assert!(text.len() < 20_000, "{} letters", text.len());
}

const RULES: &str = "version: 1
defaults: {startup_grace: 0s}
rules:
  - name: idle-holder
    target: process
    mode: enforce
    when: {gpu_util: {max: 1%}, cpu_util: {max: 50%}}
    for: {samples: 3}
    then: [{flag: warning}, {after: {samples: 1000}, terminate: {}}]
  - name: too-large
    target: process
    mode: enforce
    when: {vram: {min: 1GiB}}
    for: {samples: 3}
    then: [{terminate: {}}]
";

#[test]
fn enforcer_page_fits_every_screen() {
    let node = Node::new(RULES);
    let idle = Tenant::running(&node.home, &["python3", "-c", HOSTILE]);
    let large = Tenant::ending_on_term(&node.home);
    node.hold(&idle, 0, "used: 512MiB");
    let enforcer = node.home.enforcer(&[]);
    enforcer.until_streak(idle.pid(), 4);
    node.hold(&large, 0, "used: 3GiB, sm: 80");
    enforcer
        .until("the target is terminated", |page| page.happened("bailiff_kills_total", &[]).then_some(()));
    let mut browser = Browser::start();
    let url = format!("http://{}/", enforcer.address());
    assert_fits(&mut browser, &url, &ALL);
    for (section, shown) in [
        ("policy", "rules.yaml"),
        ("rules", "too-large"),
        ("pending", "terminate"),
        ("flags", "warning"),
        ("actions", "too-large"),
        ("budgets", "of 6"),
    ] {
        let text = browser.text(&format!("document.querySelector('#{section}').innerText"));
        assert!(text.contains(shown), "no {shown} in {section}: {text}");
    }
    let flags = browser.text("document.querySelector('#flags').innerText");
    assert!(flags.contains("<b>x</b>U+202E"), "{flags}");
    browser.visit(&url, Screen::WIDE);
    drop(node);
    browser.until("document.querySelector('.alarm')?.innerText.includes('The stream is down') ?? false");
}

const HOSTILE: &str = "open('/proc/self/comm', 'w').write('<b>x</b>\\u202e')\nimport signal\nsignal.pause()";

/// Renders the pictures in the documentation: `make screenshots`.
#[test]
#[ignore = "writes pictures into the documentation"]
fn pictures() {
    let directory = PathBuf::from(
        std::env::var_os("BAILIFF_SCREENSHOTS")
            .expect("BAILIFF_SCREENSHOTS must be set to the output directory"),
    );
    std::fs::create_dir_all(&directory).unwrap();
    let mut browser = Browser::start();
    let mut take = |url: &str, screen: Screen, name: &str| {
        browser.visit(url, screen);
        browser.picture(&directory.join(name));
    };
    let redis = pool("0-7");
    let holder = hold(&redis, &["run", "-n", "2"]);
    let node = Showcase::with(
        EIGHT,
        11,
        &["--lease.redis", &redis.address(), "--web.enforcer-url", "http://gpu-7:9837/"],
    );
    node.procfs.add(&Process { state: 'Z', threads: vec!['S'], ..process(4) });
    node.exporter.next();
    let tall = Screen { height: 1080, ..Screen::WIDE };
    take(&node.url(), tall, "status-wide-light.png");
    take(&node.url(), tall.dark(), "status-wide-dark.png");
    take(&node.url(), Screen { height: 1500, ..Screen::PHONE }, "status-phone.png");
    take(&format!("{}#holders", node.url()), tall, "status-holders.png");
    take(
        &format!("{}#holders", node.url()),
        Screen { height: 900, ..Screen::PHONE.dark() },
        "status-phone-dark.png",
    );
    end(holder, Signal::TERM);
    let short = Screen { height: 560, ..Screen::WIDE };
    for (scenario, processes, name) in [(NONE, 0, "status-no-gpu.png"), (ONE, 2, "status-one-gpu.png")] {
        let node = Showcase::new(scenario, processes);
        node.exporter.next();
        take(&node.url(), short, name);
    }
    let crowd = Showcase::new(MANY_HOLDERS, 800);
    crowd.exporter.next();
    take(&format!("{}#sources", crowd.url()), tall, "status-800-processes.png");
}
