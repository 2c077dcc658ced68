//! GPUs as cards: the parts of each GPU's memory, its utilization, and other values.

use bailiff_exposition::html::{Bar, Html, Part};
use bailiff_exposition::human::Bytes;
use bailiff_snapshot::{ClockEvent, Fault, Gpu, Health, Memory, Parts, RecoveryAction, Snapshot, Source};

use super::reasons;

/// Writes a card for each GPU and MIG instance.
pub(super) fn write(snapshot: &Snapshot, html: &mut Html) {
    html.section("gpus", "GPUs", |html| {
        if snapshot.gpus.is_empty() {
            return none(snapshot, html);
        }
        html.element("div", &[("class", "cards")], |html| {
            snapshot.gpus.iter().for_each(|gpu| card(gpu, snapshot, html));
        });
    });
}

/// Writes why there are no cards: the driver lists no GPUs, or it did not respond.
fn none(snapshot: &Snapshot, html: &mut Html) {
    match snapshot.sources.get(&Source::Nvml).map(|state| state.fault) {
        Some(None | Some(Fault::NoDevices)) => {
            html.paragraph("dim", "The driver responds, but lists no GPUs.");
        }
        Some(Some(fault)) => {
            html.unknown_paragraph(&format!("the list of GPUs, because {}", reasons::fault(fault)));
        }
        None => html.unknown_paragraph("the driver was not queried"),
    }
}

fn card(gpu: &Gpu, snapshot: &Snapshot, html: &mut Html) {
    html.element("article", &[("class", "card")], |html| {
        html.element("h3", &[], |html| {
            html.raw("GPU ");
            html.text(&gpu.about.index);
            html.dim(|html| html.text(gpu.about.name.as_deref().unwrap_or("model unknown")));
        });
        if let Some(fault) = gpu.fault {
            html.element("p", &[("class", "bad")], |html| html.unknown(reasons::fault(fault)));
        } else {
            memory(gpu, snapshot, html);
            utilization(gpu, html);
        }
        let facts = facts(gpu);
        if !facts.is_empty() {
            html.element("dl", &[], |html| {
                for (name, value) in facts {
                    fact(name, value, html);
                }
            });
        }
    });
    html.raw("\n");
}

/// Writes a value with its name, or why it is unknown.
fn figure(name: &'static str, value: Result<String, &str>, html: &mut Html) {
    html.element("p", &[("class", "figure")], |html| {
        html.element("span", &[], |html| html.raw(name));
        html.raw(" ");
        match value {
            Ok(text) => html.element("strong", &[("class", "n")], |html| html.text(&text)),
            Err(why) => html.unknown(why),
        }
    });
}

fn memory(gpu: &Gpu, snapshot: &Snapshot, html: &mut Html) {
    let Some(memory) = gpu.memory.filter(|memory| memory.total > 0) else {
        return figure("Memory", Err(reasons::memory(gpu)), html);
    };
    let (used, total) = (Bytes(memory.used.into()), Bytes(memory.total.into()));
    figure("Used", Ok(format!("{used} of {total}")), html);
    let of = format!("Memory of GPU {}, {total}", gpu.about.index);
    let parts = gpu.parts.map_or_else(|| rough(memory), |parts| exact(parts, memory.total));
    let bar = Bar { of: &of, parts: &parts };
    bar.draw(html);
    bar.legend(html);
    if gpu.parts.is_none() {
        figure("Holders", Err(reasons::parts(gpu, snapshot)), html);
    }
}

/// Returns used, free and separately reserved memory, for a GPU whose other parts are unknown.
fn rough(memory: Memory) -> Vec<Part> {
    let part = |class, name, bytes: u64| part((class, name), bytes.into(), memory.total);
    let mut parts = vec![part("used", "used", memory.used)];
    parts.extend(memory.reserved.map(|bytes| part("reserved", "reserved by the driver", bytes)));
    parts.push(part("free", "free", memory.free));
    parts
}

fn exact(parts: Parts, total: u64) -> Vec<Part> {
    let seldom = [
        (("dead", "held by pids that do not exist"), parts.dead_pids),
        (("others", "held in other PID namespaces"), parts.other_namespaces),
    ];
    let mut all = vec![part(("holders", "held by processes"), parts.holders.into(), total)];
    all.extend(
        seldom
            .into_iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(name, bytes)| part(name, bytes.into(), total)),
    );
    all.push(part(("unaccounted", "unaccounted"), parts.unaccounted.into(), total));
    all.push(part(("reserved", "reserved by the driver"), parts.reserved.into(), total));
    all.push(part(("free", "free"), parts.free.into(), total));
    all
}

#[expect(clippy::cast_precision_loss, reason = "a length on a screen")]
fn part((class, name): (&'static str, &'static str), bytes: i128, total: u64) -> Part {
    Part { class, name, share: bytes as f64 / total as f64, text: Bytes(bytes).to_string() }
}

fn utilization(gpu: &Gpu, html: &mut Html) {
    let Some(percent) = gpu.telemetry.utilization else {
        return figure("Busy", Err(reasons::figure(gpu)), html);
    };
    figure("Busy", Ok(format!("{percent} % of the time")), html);
    let share = f64::from(percent) / 100.0;
    let parts = [Part { class: "busy", name: "busy", share, text: format!("{percent} %") }];
    Bar { of: &format!("Utilization of GPU {}", gpu.about.index), parts: &parts }.draw(html);
}

/// Name of the UUID fact. It is shown to screen readers only, because the value is recognizable without it.
const UUID: &str = "UUID";

/// Name of a fact, and its value or the reason why it is unknown.
type Fact = (&'static str, Result<String, &'static str>);

fn facts(gpu: &Gpu) -> Vec<Fact> {
    let known = |value: Option<String>| value.ok_or_else(|| reasons::figure(gpu));
    let mut facts = Vec::new();
    if gpu.fault.is_none() {
        let watts = |milliwatts: u32| format!("{} W", milliwatts / 1000);
        let telemetry = &gpu.telemetry;
        facts.push(("Processes", known(gpu.listed.map(|listed| listed.to_string()))));
        facts.push(("Temperature", known(telemetry.temperature.map(|degrees| format!("{degrees} °C")))));
        facts.push(("Power", known(telemetry.power.map(watts))));
        facts.push(("Mode", known(telemetry.compute_mode.map(|mode| mode.name().replace('_', " ")))));
        facts.extend(health(&telemetry.health).map(|health| ("Health", Ok(health))));
        facts.extend((telemetry.mig_enabled == Some(true)).then(|| ("MIG", Ok("on".to_owned()))));
    }
    if !gpu.xids.is_empty() {
        let xids: Vec<String> = gpu.xids.iter().map(|(xid, count)| format!("{count} × Xid {xid}")).collect();
        facts.push(("Errors", Ok(xids.join(", "))));
    }
    facts.extend(gpu.about.id.as_ref().map(|id| (UUID, Ok(id.0.clone()))));
    facts
}

/// Describes problems of a GPU; `None` if none is known.
fn health(health: &Health) -> Option<String> {
    let action = health.recovery_action.and_then(RecoveryAction::words);
    let failed = (health.memory.remap_failed == Some(true)).then_some("a memory row could not be replaced");
    let pending =
        (health.memory.remap_pending == Some(true)).then_some("a memory row is replaced at the next reset");
    let events = health.clock_events.iter().flatten().map(|event| match event {
        ClockEvent::SwPowerCap => "clocks reduced by the power limit",
        ClockEvent::HwSlowdown => "clocks reduced by the hardware",
        ClockEvent::SwThermal | ClockEvent::HwThermal => "clocks reduced because of the temperature",
        ClockEvent::PowerBrake => "clocks reduced by the power supply",
        ClockEvent::Reliability => "clocks reduced for reliability",
        ClockEvent::Other => "clocks reduced for another reason",
    });
    let mut all: Vec<&str> = action.into_iter().chain(failed).chain(pending).chain(events).collect();
    all.dedup();
    (!all.is_empty()).then(|| all.join("; "))
}

fn fact(name: &'static str, value: Result<String, &'static str>, html: &mut Html) {
    let attributes: &[_] = if name == UUID { &[("class", "uuid")] } else { &[] };
    html.element("div", attributes, |html| {
        html.element("dt", &[], |html| html.raw(name));
        html.element("dd", &[], |html| match value {
            Ok(value) => html.text(&value),
            Err(why) => html.unknown(why),
        });
    });
}
