//! Notifications to systemd (`sd_notify(3)`): ready, alive, stopping. Without `NOTIFY_SOCKET` nothing
//! is sent.

use std::time::Duration;

use sd_notify::NotifyState;

/// It serves from now on.
pub fn ready() {
    notify(NotifyState::Ready);
}

/// It ends.
pub fn stopping() {
    notify(NotifyState::Stopping);
}

/// The daemon is working; to be called at least as often as [`watchdog`] says.
pub fn alive() {
    notify(NotifyState::Watchdog);
}

/// Interval at which to call [`alive`]: half of `WatchdogSec=`. None if the unit has none.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    Some(sd_notify::watchdog_enabled()? / 2)
}

fn notify(what: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[what]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
