//! `bailiff lease`: what its commands have in common, and the short ones.

#![expect(clippy::disallowed_methods, reason = "a wait has an end, and a local time")]

pub(crate) mod list;
pub(crate) mod run;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bailiff_lease::holder::Here;
use bailiff_lease::{Grant, Init, Pool, Released, Standing, Ticket};

use crate::exit::Failure;
use crate::flags;

/// No answer of Redis takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// A ticket is forgotten after so long without a word of its holder.
pub(crate) const TICKET: Duration = Duration::from_secs(30);
/// A lease.
pub(crate) const LEASE: Duration = Duration::from_mins(1);

pub(crate) fn open(flags: &flags::Pool) -> Result<Pool, Failure> {
    Ok(Pool::open(&flags.redis, &flags.prefix, PATIENCE)?)
}

/// The local time's distance from UTC, in seconds.
pub(crate) fn offset() -> i32 {
    jiff::Zoned::now().offset().seconds()
}

/// A ticket for a process, with a name that nobody has.
fn ticket(ask: &flags::Ask, holder: u32, about: &str) -> Result<Ticket, Failure> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    let uid = nix::unistd::getuid();
    let user = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let mut fields = Here::look().holder(holder);
    if fields.iter().any(|(field, value)| *field == "start" && value.is_empty()) {
        return Err(Failure::usage(format!("there is no process {holder}")));
    }
    fields.extend([
        // No purge of GPU.py's ends it: to signal 0 is always allowed.
        ("legacy_pid", "0".to_owned()),
        ("offset", offset().to_string()),
        ("uid", uid.to_string()),
        ("user", user.unwrap_or_else(|| uid.to_string())),
        ("mode", "run".to_owned()),
        ("cmd", about.to_owned()),
    ]);
    let lease = random.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<String>>().concat();
    Ok(Ticket { lease, want: ask.gpus, priority: 0, ttl: TICKET, nonblock: ask.nonblock, about: fields })
}

/// Asks, and waits as long as was wished. What the dead held is freed before.
fn obtain(
    pool: &mut Pool,
    ask: &flags::Ask,
    ticket: &Ticket,
    told: impl FnMut(u64),
) -> Result<Grant, Failure> {
    let here = Here::look();
    pool.reap_here(&here, LEASE)?;
    let wait = ask.wait.as_deref().map(humantime::parse_duration).transpose();
    let wait = wait.map_err(|error| Failure::usage(format!("--wait: {error}")))?;
    let until = wait.map(|wait| Instant::now() + wait);
    match pool.wait(ticket, (&here, until), told)? {
        Standing::Held(grant) => {
            // Whoever is granted something says so, or it is given to the next.
            pool.touch(&ticket.lease, LEASE, Some(grant.token))?;
            Ok(grant)
        }
        Standing::Waiting { .. } => {
            Err(Failure::late(format!("no GPU within {}", ask.wait.as_deref().unwrap_or("0s"))))
        }
        Standing::Busy => Err(Failure::busy("not enough GPUs are idle, or others were first")),
        Standing::Impossible { managed } => {
            Err(Failure::usage(format!("{} GPUs are wanted, and there are {managed}", ask.gpus)))
        }
        Standing::Uninitialised => Err(Failure::unavailable(
            "this pool has no GPUs: is the prefix right, and has anybody run `bailiff lease init`?",
        )),
        Standing::Conflict(_) => Err(Failure::not_ours("somebody else was given the same GPU meanwhile")),
        Standing::Ended(how) => {
            Err(Failure::not_ours(format!("the ticket has ended while it waited: {how}")))
        }
    }
}

/// Begins a pool.
pub(crate) fn init(flags: &flags::Init) -> Result<ExitCode, Failure> {
    let known = bailiff_sampler::uuids(Some(&flags.nvml_library));
    let gpus: Vec<(u32, Option<String>)> = match (&flags.gpus, known) {
        (None, Ok(uuids)) => (0..).zip(uuids).collect(),
        (None, Err(why)) => {
            return Err(Failure::unavailable(format!(
                "the driver does not tell its GPUs ({why}); name them with --gpus"
            )));
        }
        (Some(list), known) => {
            let numbers = numbers(list)?;
            // Without a driver, programs are told numbers.
            let uuids = known.unwrap_or_default();
            let beyond = numbers.iter().find(|number| !uuids.is_empty() && **number as usize >= uuids.len());
            if let Some(number) = beyond {
                return Err(Failure::usage(format!(
                    "there is no GPU {number}: the driver has {}",
                    uuids.len()
                )));
            }
            let uuid = |number: u32| uuids.get(number as usize).cloned().flatten();
            numbers.into_iter().map(|number| (number, uuid(number))).collect()
        }
    };
    match open(&flags.pool)?.init(&gpus, offset(), flags.force)? {
        Init::Done(count) => println!("{count} GPUs are handed out"),
        Init::Already(count) => {
            return Err(Failure::usage(format!(
                "it was begun before, with {count} GPUs; --force begins it anew"
            )));
        }
        Init::Held(count) => {
            return Err(Failure::busy(format!(
                "{count} GPUs are leased; it is not begun anew under their holders"
            )));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `0,1,4-7`.
fn numbers(list: &str) -> Result<Vec<u32>, Failure> {
    let wrong = || Failure::usage(format!("--gpus: {list:?} is no list of numbers such as 0,1,4-7"));
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
    let mut numbers = Vec::new();
    for part in list.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first || last - first > 1024 {
                    return Err(wrong());
                }
                numbers.extend(first..=last);
            }
            None => numbers.push(number(part)?),
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// Takes GPUs and prints them, for `eval`.
pub(crate) fn acquire(flags: &flags::Acquire) -> Result<ExitCode, Failure> {
    let parent = rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
    let holder = flags.holder.or(parent).ok_or_else(|| Failure::usage("--for: whose is it to be?"))?;
    let ticket = ticket(&flags.ask, holder, "acquire")?;
    let mut pool = open(&flags.ask.pool)?;
    let grant = obtain(&mut pool, &flags.ask, &ticket, |_| {})?;
    for (name, value) in environment(&mut pool, &ticket.lease, &grant)? {
        println!("export {name}={value}");
    }
    Ok(ExitCode::SUCCESS)
}

/// What programs are told of their GPUs: UUIDs, which mean the same in every order; numbers, where the pool knows none.
fn environment(pool: &mut Pool, lease: &str, grant: &Grant) -> Result<[(&'static str, String); 5], Failure> {
    let audit = pool.audit()?;
    let uuid = |id: &String| audit.gpus.iter().find(|gpu| gpu.id == *id).and_then(|gpu| gpu.uuid.clone());
    let ids: Vec<String> = grant.gpus.iter().map(u32::to_string).collect();
    let uuids: Option<Vec<String>> = ids.iter().map(uuid).collect();
    let ids = ids.join(",");
    Ok([
        ("CUDA_VISIBLE_DEVICES", uuids.map_or_else(|| ids.clone(), |uuids| uuids.join(","))),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        (bailiff_lease::holder::LEASE_VARIABLE, lease.to_owned()),
        ("BAILIFF_LEASE_TOKEN", grant.token.to_string()),
        ("BAILIFF_LEASE_GPUS", ids),
    ])
}

/// Gives GPUs back.
pub(crate) fn release(flags: &flags::Release) -> Result<ExitCode, Failure> {
    match open(&flags.pool)?.release(&flags.lease, None, (offset(), std::process::id()))? {
        Released::Done | Released::Already(_) => Ok(ExitCode::SUCCESS),
        Released::Lost => Err(Failure::not_ours("it is somebody else's by now")),
        Released::Unknown => Err(Failure::unknown(format!("nothing is known of a lease {:?}", flags.lease))),
    }
}

/// Frees what the dead held.
pub(crate) fn reap(flags: &flags::Pool) -> Result<ExitCode, Failure> {
    println!("{}", open(flags)?.reap_here(&Here::look(), LEASE)?);
    Ok(ExitCode::SUCCESS)
}
