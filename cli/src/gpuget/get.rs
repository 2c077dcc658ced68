//! `--get`: waits in one line with GPU.py's clients, for a GPU that outlives this program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, Pool, Ticket, TicketStatus};

use super::place::Place;
use super::signals::Held;
use super::{Failure, say};
use crate::lease::{LEASE, TICKET, offset};

/// Between two attempts to reach a Redis that has gone.
const PAUSE: Duration = Duration::from_millis(200);

/// The lease that is to be withdrawn should we be told to end; none once it was told to the caller. Whoever has the
/// lock decides which.
type Wish = Arc<Mutex<Option<String>>>;

pub(super) fn get(place: &Place, mut pool: Pool) -> Result<(), Failure> {
    let signals = Held::back()?;
    let (parent, local_host) = (super::parent(), LocalHost::read());
    let wish = Wish::default();
    withdraw_at_a_signal(place, signals, Arc::clone(&wish))?;
    if pool.view()?.managed.is_empty() {
        super::warn(&format!(
            "no GPU is handed out under the prefix {}; waits until some are (is it the right one?)",
            place.prefix
        ));
    }
    let mut wanted = ticket(&local_host, parent)?;
    loop {
        *lock(&wish) = Some(wanted.lease.clone());
        match pool.wait(&wanted, (&local_host, None), |_| {})? {
            TicketStatus::Held(grant) if told(&mut pool, (&wanted, &grant), &wish)? => return Ok(()),
            // It does not hold as it was told: it is asked how it stands.
            TicketStatus::Held(_) => {}
            // It was released, or taken for dead, before we knew of it: somebody else has the GPU.
            TicketStatus::Ended(_) | TicketStatus::Conflict(_) => {
                std::thread::park_timeout(PAUSE);
                wanted = ticket(&local_host, parent)?;
            }
            other => return Err(Failure::Other(format!("Redis answered what is not understood: {other:?}"))),
        }
    }
}

fn lock(wish: &Wish) -> MutexGuard<'_, Option<String>> {
    wish.lock().unwrap_or_else(PoisonError::into_inner)
}

fn withdraw_at_a_signal(place: &Place, signals: Held, wish: Wish) -> Result<(), Failure> {
    let place = place.clone();
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        let mut decided = None;
        signals.die(|| {
            let wished = lock(&wish);
            if let (Some(lease), Ok(mut pool)) = (&*wished, place.open()) {
                // Where Redis does not answer, whoever next looks finds us dead.
                let _ = pool.release(lease, None, (offset(), std::process::id()));
            }
            decided = Some(wished);
        });
    })?;
    Ok(())
}

/// Says that we know of the grant, and prints it; not where it has ended meanwhile.
fn told(pool: &mut Pool, (ticket, grant): (&Ticket, &Grant), wish: &Wish) -> Result<bool, Failure> {
    loop {
        let mut wished = lock(wish);
        match pool.touch(&ticket.lease, LEASE, Some(grant.token)) {
            Ok(TicketStatus::Held(_)) => {
                let ids: Vec<String> = grant.gpus.iter().map(u32::to_string).collect();
                if let Err(failure) = say(&ids.join(",")) {
                    pool.release(&ticket.lease, Some(grant.token), (offset(), std::process::id()))?;
                    return Err(match failure {
                        Failure::Unread => {
                            Failure::Other("nobody reads the number; the GPU was given back".to_owned())
                        }
                        failure => failure,
                    });
                }
                *wished = None;
                return Ok(true);
            }
            Ok(_) => return Ok(false),
            Err(error) if error.passes() => {}
            Err(error) => return Err(error.into()),
        }
        drop(wished);
        std::thread::park_timeout(PAUSE);
    }
}

/// A ticket for whoever runs us.
fn ticket(local_host: &LocalHost, parent: u32) -> Result<Ticket, Failure> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    let uid = nix::unistd::getuid();
    let user = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let mut about = local_host.holder(parent);
    about.extend(local_host.taker(parent));
    about.extend([
        ("legacy_pid", parent.to_string()),
        ("offset", offset().to_string()),
        ("uid", uid.to_string()),
        ("user", user.unwrap_or_else(|| uid.to_string())),
        ("cmd", "GPU.py --get".to_owned()),
    ]);
    let lease = random.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<String>>().concat();
    Ok(Ticket { lease, want: 1, priority: 0, ttl: TICKET, nonblock: false, about })
}
