//! What systemd is told of a daemon (`sd_notify(3)`): that it serves, that it lives, that it ends. Where nobody asked to be told,
//! nothing is.

use std::time::Duration;

use sd_notify::NotifyState;

/// It serves from now on.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// It ends.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

/// It does its work: to be said at least as often as [`watchdog`] says.
pub fn alive() {
    tell(NotifyState::Watchdog);
}

/// How often [`alive`] is to be said: twice in the time of `WatchdogSec=`. None where the unit has none.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    Some(sd_notify::watchdog_enabled()? / 2)
}

fn tell(what: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[what]) {
        tracing::warn!(%error, "systemd cannot be told");
    }
}
