//! A small node with GPUs, processes and sources. It is changed a little between intervals, and rendered as
//! snapshots.

use bailiff_snapshot::{LastListed, LostGpu, PidNamespace, Place, State, Word, wire};
use snapshot_fixtures::stream as fixtures;

use crate::dice::Dice;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const INTERVAL: u64 = 5000;
pub(crate) const SLOTS: usize = 6;

/// A process that holds or held memory.
#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact")]
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) alive: bool,
    pub(crate) pid: u32,
    pub(crate) ticks: u64,
    pub(crate) uid: Option<u32>,
    pub(crate) comm: &'static str,
    pub(crate) workload: Option<u8>,
    /// Bit mask of the process's GPUs.
    pub(crate) gpus: u8,
    pub(crate) mib: Option<u64>,
    pub(crate) util: Option<u32>,
    pub(crate) cpu_rate: f64,
    pub(crate) cpu: f64,
    pub(crate) confirmed: bool,
    pub(crate) listed_but_gone: bool,
    pub(crate) orphaned: Option<bool>,
    pub(crate) state: &'static str,
    pub(crate) contained: bool,
    /// A child without memory: name and owner.
    pub(crate) child: Option<(&'static str, Option<u32>)>,
    /// Executable of the process and of its child, or `None` if it is unknown.
    pub(crate) exe: Option<&'static str>,
    pub(crate) child_exe: Option<&'static str>,
}

#[derive(Debug, Clone)]
pub(crate) struct Card {
    pub(crate) fault: Option<&'static str>,
    pub(crate) listed: bool,
    pub(crate) util: Option<u32>,
    pub(crate) free_mib: Option<u64>,
    pub(crate) mig: bool,
    pub(crate) absent: bool,
    /// When the GPU was lost or went missing, and its remembered holders.
    lost: (u64, Option<LastListed>),
}

/// The whole node.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact")]
pub(crate) struct World {
    pub(crate) slots: Vec<Slot>,
    pub(crate) cards: Vec<Card>,
    pub(crate) nvml: bool,
    pub(crate) proc: bool,
    pub(crate) relatives: bool,
    pub(crate) host: bool,
    pub(crate) boot: u32,
    pub(crate) boot_known: bool,
    pub(crate) boot_ms: u64,
    pub(crate) wall_offset: i64,
    pub(crate) interval: u64,
    pub(crate) seq: u64,
}

/// A small change.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Util(usize, Option<u32>),
    Cpu(usize, f64),
    Memory(usize, Option<u64>),
    Owner(usize, Option<u32>),
    Comm(usize, &'static str),
    Confirmed(usize, bool),
    ListedButGone(usize, bool),
    Orphaned(usize, Option<bool>),
    State(usize, &'static str),
    End(usize),
    /// The pid is reused at once.
    Reuse(usize),
    Begin(usize),
    Gpus(usize, u8),
    Child(usize, Option<(&'static str, Option<u32>)>),
    Exe(usize, Option<&'static str>),
    ChildExe(usize, Option<&'static str>),
    Fault(usize, Option<&'static str>),
    Listed(usize, bool),
    CardUtil(usize, Option<u32>),
    Free(usize, Option<u64>),
    Mig(usize, bool),
    Absent(usize, bool),
    Nvml(bool),
    Proc(bool),
    Relatives(bool),
    Host(bool),
    BootKnown(bool),
    Interval(u64),
}

impl World {
    /// Returns a node with mostly idle processes.
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let cards = dice.of(1, 3);
        let used = usize::try_from(dice.of(1, SLOTS as u64)).unwrap();
        let slots = (0..SLOTS).map(|index| Slot::new(index, used, cards, dice)).collect();
        let card = |_| Card {
            fault: None,
            listed: true,
            util: Some(0),
            free_mib: Some(1000),
            mig: false,
            absent: false,
            lost: (0, None),
        };
        Self {
            slots,
            cards: (0..cards).map(card).collect(),
            nvml: true,
            proc: true,
            relatives: true,
            host: true,
            boot: 1,
            boot_known: true,
            boot_ms: 10_000_000,
            wall_offset: 1_700_000_000_000,
            interval: INTERVAL,
            seq: 1,
        }
    }

    pub(crate) fn wall_ms(&self) -> u64 {
        self.boot_ms.checked_add_signed(self.wall_offset).unwrap()
    }

    /// Advances time.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.boot_ms += ms;
        self.seq += 1;
        #[expect(clippy::cast_precision_loss, reason = "small")]
        for slot in self.slots.iter_mut().filter(|slot| slot.alive) {
            slot.cpu += slot.cpu_rate * ms as f64 / 1000.0;
        }
    }

    pub(crate) fn reboot(&mut self) {
        self.boot += 1;
        // The wall clock advances.
        let lost = self.boot_ms - 100_000;
        self.wall_offset += i64::try_from(lost).unwrap();
        self.boot_ms = 100_000;
        for slot in &mut self.slots {
            slot.ticks = 100;
        }
    }

    pub(crate) fn apply(&mut self, change: &Change) {
        let fresh = self.boot_ms / 10;
        match *change {
            Change::Util(index, util) => self.slots[index].util = util,
            Change::Cpu(index, rate) => self.slots[index].cpu_rate = rate,
            Change::Memory(index, mib) => self.slots[index].mib = mib,
            Change::Owner(index, uid) => self.slots[index].uid = uid,
            Change::Comm(index, comm) => self.slots[index].comm = comm,
            Change::Confirmed(index, confirmed) => self.slots[index].confirmed = confirmed,
            Change::ListedButGone(index, gone) => self.slots[index].listed_but_gone = gone,
            Change::Orphaned(index, orphaned) => self.slots[index].orphaned = orphaned,
            Change::State(index, state) => self.slots[index].state = state,
            Change::End(index) => self.slots[index].alive = false,
            Change::Reuse(index) => {
                let slot = &mut self.slots[index];
                (slot.alive, slot.ticks, slot.cpu) = (true, fresh, 0.0);
            }
            Change::Begin(index) => {
                let slot = &mut self.slots[index];
                if !slot.alive {
                    (slot.alive, slot.ticks, slot.cpu) = (true, fresh, 0.0);
                }
            }
            Change::Gpus(index, gpus) => self.slots[index].gpus = gpus,
            Change::Child(index, child) => self.slots[index].child = child,
            Change::Fault(index, fault) => {
                self.lose(index);
                self.card(index).fault = fault;
            }
            Change::Exe(index, exe) => self.slots[index].exe = exe,
            Change::ChildExe(index, exe) => self.slots[index].child_exe = exe,
            Change::Listed(index, listed) => self.card(index).listed = listed,
            Change::CardUtil(index, util) => self.card(index).util = util,
            Change::Free(index, mib) => self.card(index).free_mib = mib,
            Change::Mig(index, mig) => self.card(index).mig = mig,
            Change::Absent(index, absent) => {
                self.lose(index);
                self.card(index).absent = absent;
            }
            Change::Nvml(up) => self.nvml = up,
            Change::Proc(up) => self.proc = up,
            Change::Relatives(known) => self.relatives = known,
            Change::Host(host) => self.host = host,
            Change::BootKnown(known) => self.boot_known = known,
            Change::Interval(interval) => self.interval = interval,
        }
    }

    fn card(&mut self, index: usize) -> &mut Card {
        let count = self.cards.len();
        &mut self.cards[index % count]
    }

    /// Records the holders of a GPU that is lost from now on, in two of three cases.
    fn lose(&mut self, index: usize) {
        let index = index % self.cards.len();
        let at_ms = self.boot_ms - INTERVAL;
        let holders = self.slots.iter().filter(|slot| slot.alive && slot.gpus & (1 << index) != 0);
        let holders = holders.map(|slot| (slot.pid, Some(slot.ticks))).collect();
        let remembered = !(self.boot_ms / INTERVAL).is_multiple_of(3);
        self.cards[index].lost = (self.boot_ms, remembered.then_some(LastListed { at_ms, holders }));
    }

    /// Returns the GPUs that are lost or missing. Sometimes this is unknown.
    fn lost(&self) -> Vec<LostGpu> {
        let lost = |card: &Card| card.absent || card.fault == Some("lost");
        let cards = self.cards.iter().enumerate().filter(|(_, card)| self.nvml && lost(card));
        cards
            .map(|(index, card)| LostGpu {
                index: index.to_string(),
                uuid: Some(format!("GPU-{index}")),
                since_ms: (!self.seq.is_multiple_of(7)).then_some(card.lost.0),
                last: card.lost.1.clone(),
                ..LostGpu::default()
            })
            .collect()
    }

    /// Returns the snapshot that the exporter would send.
    pub(crate) fn snapshot(&self) -> wire::Snapshot {
        let gpus: Vec<wire::Gpu> = if self.nvml {
            let present = self.cards.iter().enumerate().filter(|(_, card)| !card.absent);
            present.map(|(index, card)| self.gpu(index, card)).collect()
        } else {
            Vec::new()
        };
        let listed = |slot: &&Slot| gpus.iter().any(|gpu| gpu.holders.iter().any(|it| it.pid == slot.pid));
        let processes: Vec<wire::Process> =
            self.slots.iter().filter(listed).map(|slot| self.process(slot)).collect();
        let relatives = (self.relatives && self.proc).then(|| {
            let parents = self.slots.iter().filter(|slot| slot.alive && !slot.listed_but_gone);
            parents.filter_map(Slot::relative).collect()
        });
        wire::Snapshot {
            boot_id: self.boot_known.then(|| format!("boot-{}", self.boot)),
            wall_ms: self.wall_ms(),
            boot_ms: self.boot_ms,
            interval_ms: self.interval,
            pid_namespace: if self.host { PidNamespace::Host } else { PidNamespace::Other }.into(),
            sources: [("nvml", self.nvml), ("proc", self.proc)]
                .map(|(name, up)| (name.to_owned(), fixtures::source(up)))
                .into(),
            relatives,
            lost: self.lost(),
            ..fixtures::snapshot(self.seq, gpus, processes)
        }
    }

    fn gpu(&self, index: usize, card: &Card) -> wire::Gpu {
        let holding = |slot: &&Slot| slot.alive && slot.gpus & (1 << index) != 0;
        let listed = card.listed && card.fault.is_none();
        let holders: Vec<wire::Holder> =
            self.slots.iter().filter(|_| listed).filter(holding).map(Slot::holder).collect();
        wire::Gpu {
            name: Some("Fake".to_owned()),
            minor: u32::try_from(index).ok(),
            fault: card.fault.map(Word::from),
            mig: card.mig,
            memory: card.free_mib.filter(|_| card.fault.is_none()).map(|free| wire::Memory {
                total: 80_000 * MIB,
                free: free * MIB,
                used: (80_000 - free) * MIB,
                unaccounted: Some(0),
                ..wire::Memory::default()
            }),
            utilization: card.util.filter(|_| card.fault.is_none()),
            listed: listed.then_some(holders.len() as u64),
            instances: (card.mig && card.fault.is_none() && index.is_multiple_of(2)).then_some(0),
            ..fixtures::gpu(&index.to_string(), holders)
        }
    }

    fn process(&self, slot: &Slot) -> wire::Process {
        if slot.listed_but_gone && self.proc {
            return fixtures::unconfirmed(slot.pid, 7, State::Gone);
        }
        if !(slot.confirmed && self.proc) {
            return fixtures::unconfirmed(slot.pid, 7, State::Unknown);
        }
        wire::Process { state: slot.state.into(), ..fixtures::process(slot.pid, slot.ticks, slot.facts()) }
    }
}

impl Slot {
    fn new(index: usize, used: usize, cards: u64, dice: &mut Dice) -> Self {
        Self {
            alive: index < used,
            pid: 4100 + u32::try_from(index).unwrap() * 10,
            ticks: 100,
            uid: Some(dice.pick(&[1000, 1000, 1001, 998])),
            comm: "train",
            workload: if dice.percent(92) { Some(u8::try_from(dice.below(6)).unwrap()) } else { None },
            gpus: u8::try_from(dice.of(1, (1 << cards) - 1)).unwrap(),
            mib: Some(dice.pick(&[100, 600, 2000, 5000])),
            util: Some(if dice.percent(75) { 0 } else { 80 }),
            cpu_rate: if dice.percent(75) { 0.0 } else { 0.9 },
            cpu: 1000.0,
            confirmed: true,
            listed_but_gone: false,
            orphaned: Some(dice.percent(20)),
            state: "sleeping",
            contained: dice.percent(30),
            child: dice.percent(30).then_some(("worker", None)),
            exe: Some("/opt/train"),
            child_exe: Some("/opt/worker"),
        }
    }

    fn holder(&self) -> wire::Holder {
        fixtures::holder(self.pid, self.mib.map(|mib| mib * MIB), self.util)
    }

    fn workload_name(&self) -> Option<String> {
        Some(match self.workload? {
            0 => "tree:4100@100".to_owned(),
            1 => "slurm:77".to_owned(),
            2 => "pod:aaaa".to_owned(),
            3 => "container:bbbb".to_owned(),
            4 => "unit:/system.slice/train.service".to_owned(),
            other => format!("slurm:{other}"),
        })
    }

    fn place(&self) -> Place {
        let container = self.contained.then(|| "c0ffee".to_owned());
        Place { cgroup: "/made.slice".to_owned(), container, ..Place::default() }
    }

    fn facts(&self) -> wire::Facts {
        wire::Facts {
            ppid: 3000,
            uid: self.uid,
            user: self.uid.map(|uid| format!("user-{uid}")),
            place: self.place().into(),
            cpu_seconds: self.cpu,
            orphaned: self.orphaned,
            reaped_cpu_seconds: Some(0.0),
            workload: self.workload_name(),
            exe: self.exe.map(str::to_owned),
            ..fixtures::facts(self.comm)
        }
    }

    fn relative(&self) -> Option<wire::Relative> {
        let (comm, uid) = self.child?;
        Some(wire::Relative {
            pid: self.pid + 1,
            start_ticks: self.ticks + 1,
            ppid: self.pid,
            uid: uid.or(self.uid),
            user: uid.or(self.uid).map(|uid| format!("user-{uid}")),
            comm: comm.to_owned(),
            state: State::Sleeping.into(),
            workload: self.workload_name().unwrap_or_default(),
            place: self.place().into(),
            exe: self.child_exe.map(str::to_owned),
            cpu_seconds: 1.0,
            ..wire::Relative::default()
        })
    }
}
