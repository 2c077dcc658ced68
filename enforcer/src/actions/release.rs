//! Step `release_lease`: ends exactly the evaluated lease, identified by its id and fencing token. No process
//! is signalled; GPUs that a process still uses are quarantined until it has left.

use bailiff_lease::Leases as _;
use bailiff_lease::audit::Lease;
use bailiff_lease::{End, Ended, LeaseError, Pool};

use super::ActionResult;
use super::context::ActionContext;
use crate::agent;
use bailiff_engine::Kind;
use bailiff_engine::guard::Refusal;
use bailiff_engine::verdict::Outcome;

pub(super) fn release(context: &ActionContext<'_>) -> Result<ActionResult, Refusal> {
    let subject = &context.request.subject;
    let name = subject.id.0.strip_prefix("lease:").and_then(|name| name.rsplit_once('#'));
    let named = name.and_then(|(lease, token)| Some((lease, token.parse::<u64>().ok()?)));
    let (Kind::Lease, Some((lease, token))) = (subject.kind, named) else {
        return Err(Refusal::refused("the target is not a lease"));
    };
    let Some(leases) = &context.request.leases else {
        return Err(Refusal::refused("the policy has no `leases` section"));
    };
    let refused = |error: LeaseError| Refusal::refused(error.to_string());
    let mut pool = agent::open(leases).map_err(refused)?;
    let audit = pool.audit().map_err(refused)?;
    let Some(held) = audit.leases.iter().find(|held| held.lease == lease && held.state == "held") else {
        return Err(Refusal { outcome: Outcome::Gone, why: "the lease had already ended".to_owned() });
    };
    if held.number("tok") != Some(token) {
        let why = "the fencing token of the lease has changed".to_owned();
        return Err(Refusal { outcome: Outcome::IdentityChanged, why });
    }
    let view = context.inbox.view();
    let busy = view.map(|view| agent::busy(&view, &audit, held)).unwrap_or_default();
    Ok(context.carry_out(|_| {
        let ended = pool.end(lease, End::Revoked { token, pid: std::process::id() }, &busy);
        verify(ended, (&mut pool, lease, token), &busy)
    }))
}

/// Verifies in the pool that the lease has ended.
fn verify(
    ended: Result<Ended, LeaseError>,
    (pool, lease, token): (&mut Pool, &str, u64),
    busy: &[String],
) -> ActionResult {
    match ended {
        Ok(Ended::Lost) => {
            ActionResult::new(Outcome::IdentityChanged, "the fencing token of the lease has changed")
        }
        Ok(Ended::Already(how)) if how != "revoked" => {
            ActionResult::new(Outcome::Gone, format!("the lease had already ended: {how}"))
        }
        Ok(Ended::Kept) => ActionResult::new(Outcome::Failed, "Redis did not end the lease"),
        Ok(Ended::Done | Ended::Already(_)) | Err(_) => {
            let left = pool.audit().map(|audit| {
                let holds = |held: &Lease| {
                    held.lease == lease && held.state == "held" && held.number("tok") == Some(token)
                };
                audit.leases.iter().any(holds)
            });
            match (left, ended) {
                (Ok(false), _) if busy.is_empty() => ActionResult::new(Outcome::Released, ""),
                (Ok(false), _) => {
                    let ids = busy.join(", ");
                    ActionResult::new(
                        Outcome::Released,
                        format!("GPUs still in use: {ids}; quarantined until no process uses them"),
                    )
                }
                (Ok(true), Err(error)) => ActionResult::new(Outcome::Failed, error.to_string()),
                (Ok(true), Ok(_)) => ActionResult::new(Outcome::Failed, "the lease is still in the pool"),
                (Err(error), _) => ActionResult::new(Outcome::Undetermined, error.to_string()),
            }
        }
    }
}
